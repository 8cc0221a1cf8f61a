"""The clipped objective and its gradient, down to the Beta parameters."""

import math

import pytest
import torch

from allocembed.rdpo.objective import (
    ACTION_MARGIN,
    LOG_RATIO_LIMIT,
    beta_log_prob,
    clipped_objective,
    diagnose,
    log_ratio,
    sample_actions,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(*shape: int, low: float, high: float, seed: int = 0) -> torch.Tensor:
    return low + (high - low) * torch.rand(*shape, generator=seeded(seed), dtype=torch.float64)


def one_action(moved: float, worth: float) -> tuple[float, float]:
    """Objective and its slope in log ρ, for a single action whose ratio is `moved`."""
    new = torch.tensor([[[math.log(moved)]]], dtype=torch.float64, requires_grad=True)
    valid = torch.ones(1, 1, dtype=torch.bool)
    value = clipped_objective(new, torch.zeros_like(new), torch.tensor([[worth]], dtype=torch.float64), valid)
    value.backward()
    return value.item(), new.grad.item()


@pytest.mark.parametrize(
    ("moved", "worth", "value", "slope"),
    [
        # A good action that became likelier stops at 1.28 ...
        (1.27, 1.0, 1.27, 1.27),
        (1.29, 1.0, 1.28, 0.0),
        # ... and one that became unlikelier is always pulled back.
        (0.81, 1.0, 0.81, 0.81),
        (0.79, 1.0, 0.79, 0.79),
        # A bad action that became unlikelier stops at 0.80 ...
        (0.81, -1.0, -0.81, -0.81),
        (0.79, -1.0, -0.80, 0.0),
        # ... and one that became likelier is always pushed down.
        (1.27, -1.0, -1.27, -1.27),
        (1.29, -1.0, -1.29, -1.29),
    ],
)
def test_clipping_is_asymmetric_and_only_ever_holds_back(moved, worth, value, slope):
    assert one_action(moved, worth) == pytest.approx((value, slope), abs=1e-9)


def test_clip_widths_can_be_set():
    new = torch.tensor([1.5, 0.5]).log().view(1, 1, 2)
    valid = torch.ones(1, 2, dtype=torch.bool)
    up = clipped_objective(new, torch.zeros_like(new), torch.ones(1, 1), valid, clip_low=0.1, clip_high=0.3)
    down = clipped_objective(new, torch.zeros_like(new), -torch.ones(1, 1), valid, clip_low=0.1, clip_high=0.3)
    assert (up.item(), down.item()) == pytest.approx(((1.3 + 0.5) / 2, -(1.5 + 0.9) / 2))


def test_the_gradient_at_alpha_and_beta_is_what_finite_differences_say():
    batch, k, chunks = 3, 4, 5
    alpha, beta = (uniform(batch, chunks, low=1.0, high=6.0, seed=seed) for seed in (1, 2))
    actions = sample_actions(alpha, beta, k, seeded(3))
    # The new policy is some way off, so that actions of both signs lie inside and outside the clipping range.
    new_alpha = alpha * uniform(batch, chunks, low=0.6, high=1.6, seed=5)
    new_beta = beta * uniform(batch, chunks, low=0.6, high=1.6, seed=6)
    old = beta_log_prob(actions, alpha, beta)
    worth = torch.randn(batch, k, generator=seeded(4), dtype=torch.float64)
    valid = torch.ones(batch, chunks, dtype=torch.bool)
    valid[1, 3:] = False

    def objective(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return clipped_objective(beta_log_prob(actions, first, second), old, worth, valid)

    fraction = diagnose(beta_log_prob(actions, new_alpha, new_beta), old, worth, valid).clip_fraction
    assert 0.05 < fraction < 0.95, "both branches of the minimum are exercised"
    first, second = new_alpha.requires_grad_(), new_beta.requires_grad_()
    gradients = torch.autograd.grad(objective(first, second), (first, second))
    step = 1e-6
    for which, gradient in enumerate(gradients):
        for position in range(batch * chunks):
            shift = torch.zeros(batch * chunks, dtype=torch.float64)
            shift[position] = step
            shift = shift.view(batch, chunks)
            up, down = (
                objective(*(shape.detach() + sign * shift * (i == which) for i, shape in enumerate((first, second))))
                for sign in (1, -1)
            )
            slope = ((up - down) / (2 * step)).item()
            assert gradient.flatten()[position].item() == pytest.approx(slope, abs=1e-8, rel=1e-5)
    assert not gradients[0][1, 3:].any() and not gradients[1][1, 3:].any()


def test_before_the_first_step_the_gradient_is_the_plain_policy_gradient():
    new = torch.zeros(2, 3, 4, requires_grad=True)
    worth = torch.randn(2, 3, generator=seeded())
    valid = torch.ones(2, 4, dtype=torch.bool)
    value = clipped_objective(new, new, worth, valid)  # the old policy is detached inside
    value.backward()
    torch.testing.assert_close(value.detach(), worth.mean())
    torch.testing.assert_close(new.grad, (worth / 24).unsqueeze(-1).expand(2, 3, 4))


@pytest.mark.parametrize("garbage", [0.0, 7.0, float("nan"), float("inf"), float("-inf")])
def test_padding_neither_counts_nor_learns_whatever_it_holds(garbage):
    valid = torch.tensor([[True, True, False], [True, False, False]])
    new, old = (torch.randn(2, 4, 3, generator=seeded(seed)) * 0.1 for seed in (0, 1))
    worth = torch.randn(2, 4, generator=seeded(2))
    by_hand = [
        torch.minimum(moved * worth[b, k], moved.clamp(0.8, 1.28) * worth[b, k])
        for b in range(2)
        for k in range(4)
        for moved in (new[b, k, valid[b]] - old[b, k, valid[b]]).exp()
    ]
    keep = valid.unsqueeze(1)
    new = new.masked_fill(~keep, garbage).requires_grad_()
    value = clipped_objective(new, old.masked_fill(~keep, garbage), worth, valid)
    value.backward()
    torch.testing.assert_close(value.detach(), torch.stack(by_hand).mean())
    assert not new.grad.masked_select(~keep).any()
    assert new.grad.isfinite().all() and new.grad.masked_select(keep).any()
    assert diagnose(new, old.masked_fill(~keep, garbage), worth, valid).mean_ratio.isfinite()


def test_a_batch_without_a_valid_action_gives_zero():
    new = torch.randn(1, 2, 3, requires_grad=True)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    value = clipped_objective(new, torch.zeros(1, 2, 3), torch.ones(1, 2), nothing)
    value.backward()
    assert value.item() == 0 and not new.grad.any()
    found = diagnose(new, torch.zeros(1, 2, 3), torch.ones(1, 2), nothing)
    assert (found.clip_fraction.item(), found.mean_ratio.item()) == (0.0, 1.0)


def test_the_parts_of_a_batch_sum_to_the_whole():
    new, old = (torch.randn(5, 4, 3, generator=seeded(seed)) * 0.2 for seed in (0, 1))
    worth = torch.randn(5, 4, generator=seeded(2))
    valid = torch.rand(5, 3, generator=seeded(3)) < 0.6
    total = int(valid.sum()) * 4
    parts = sum(
        clipped_objective(new[part], old[part], worth[part], valid[part], total_actions=total)
        for part in (slice(0, 2), slice(2, 3), slice(3, 5))
    )
    torch.testing.assert_close(parts, clipped_objective(new, old, worth, valid))


def test_the_advantage_gets_no_gradient():
    worth = torch.ones(1, 1, requires_grad=True)
    new = torch.zeros(1, 1, 1, requires_grad=True)
    clipped_objective(new, torch.zeros(1, 1, 1), worth, torch.ones(1, 1, dtype=torch.bool)).backward()
    assert worth.grad is None and new.grad is not None


def test_a_wild_log_ratio_is_held_and_never_overflows():
    wild = torch.tensor([500.0, -500.0])
    assert log_ratio(wild, torch.zeros(2)).tolist() == [LOG_RATIO_LIMIT, -LOG_RATIO_LIMIT]


def test_diagnostics_count_actions_that_no_longer_learn():
    new = torch.tensor([0.79, 0.81, 1.27, 1.29]).log().expand(1, 2, 4).clone().requires_grad_()
    worth, valid = torch.tensor([[1.0, -1.0]]), torch.tensor([[True, True, True, True]])
    found = diagnose(new, torch.zeros(1, 2, 4), worth, valid)
    clipped_objective(new, torch.zeros(1, 2, 4), worth, valid).backward()
    assert found.clip_fraction.item() == (new.grad == 0).double().mean().item() == 0.25
    assert found.mean_ratio.item() == pytest.approx((0.79 + 0.81 + 1.27 + 1.29) / 4)


def test_bfloat16_inputs_are_computed_in_float32():
    alpha, beta = (uniform(2, 6, low=1.0, high=20.0, seed=seed).bfloat16() for seed in (0, 1))
    actions = sample_actions(alpha, beta, 8, seeded())
    assert actions.dtype == torch.float32
    found = beta_log_prob(actions, alpha, beta)
    exact = beta_log_prob(actions.double(), alpha.double(), beta.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=1e-5)

    new, old = exact.bfloat16(), (exact + 0.05).bfloat16()
    worth, valid = torch.randn(2, 8, generator=seeded()).bfloat16(), torch.ones(2, 6, dtype=torch.bool)
    value = clipped_objective(new, old, worth, valid)
    assert value.dtype == torch.float32
    wide = clipped_objective(new.double(), old.double(), worth.double(), valid)
    assert value.item() == pytest.approx(wide.item(), abs=1e-6)


def test_log_probabilities_are_those_of_torch():
    alpha, beta = (uniform(2, 3, low=0.5, high=20.0, seed=seed) for seed in (0, 1))
    actions = uniform(2, 4, 3, low=0.001, high=0.999, seed=2)
    expected = torch.distributions.Beta(alpha.unsqueeze(1), beta.unsqueeze(1)).log_prob(actions)
    torch.testing.assert_close(beta_log_prob(actions, alpha, beta), expected)


def test_actions_at_the_very_ends_have_finite_log_probabilities_and_gradients():
    alpha, beta = (torch.full((1, 1), value, requires_grad=True) for value in (0.5, 20.0))
    found = beta_log_prob(torch.tensor([[[0.0], [1.0]]]), alpha, beta)
    found.sum().backward()
    assert found.isfinite().all() and alpha.grad.isfinite().all() and beta.grad.isfinite().all()


def test_samples_follow_their_beta_distribution_and_can_be_drawn_again():
    alpha, beta = torch.tensor([[1.0, 2.0, 20.0]]), torch.tensor([[1.0, 6.0, 5.0]])
    actions = sample_actions(alpha, beta, 20_000, seeded())
    expected = torch.distributions.Beta(alpha, beta)
    torch.testing.assert_close(actions.mean(1), expected.mean, atol=0.01, rtol=0)
    torch.testing.assert_close(actions.var(1), expected.variance, atol=0.003, rtol=0)
    assert actions.equal(sample_actions(alpha, beta, 20_000, seeded()))
    assert not actions.equal(sample_actions(alpha, beta, 20_000, seeded(1)))


def test_samples_stay_inside_and_carry_no_gradient():
    alpha, beta = (torch.full((2, 2), value, requires_grad=True) for value in (1e-3, 1e-3))
    actions = sample_actions(alpha, beta, 500, seeded())
    assert actions.shape == (2, 500, 2) and not actions.requires_grad
    assert actions.min() >= ACTION_MARGIN and actions.max() <= 1 - ACTION_MARGIN


def test_a_few_steps_make_good_actions_likelier():
    # Actions above 0.5 are worth having: the mean of the policy must rise from 0.5.
    raw = torch.zeros(1, 2, requires_grad=True)
    optimiser, generator = torch.optim.Adam([raw], lr=0.05), seeded()
    for _ in range(40):
        alpha, beta = (torch.nn.functional.softplus(raw[:, i : i + 1]) + 1 for i in (0, 1))
        actions = sample_actions(alpha, beta, 32, generator)
        worth = (actions.squeeze(-1) > 0.5).float() - 0.5
        log_prob = beta_log_prob(actions, alpha, beta)
        optimiser.zero_grad()
        (-clipped_objective(log_prob, log_prob, worth, torch.ones(1, 1, dtype=torch.bool))).backward()
        optimiser.step()
    assert (alpha / (alpha + beta)).item() > 0.65


def test_shapes_that_would_broadcast_by_accident_are_refused():
    log_prob, valid = torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"the advantage \(B, K\)"):
        clipped_objective(log_prob, log_prob, torch.ones(2, 1), valid)
    with pytest.raises(ValueError, match=r"valid \(B, C\)"):
        clipped_objective(log_prob, log_prob, torch.ones(2, 3), valid[:1])
    with pytest.raises(ValueError, match="must be bool"):
        clipped_objective(log_prob, log_prob, torch.ones(2, 3), valid.float())
