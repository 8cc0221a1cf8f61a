"""Rewards against numbers worked by hand, and every ablation against the one term it may change."""

from dataclasses import fields

import pytest
import torch

from allocembed.rdpo.config import RewardOptions
from allocembed.rdpo.rewards import Scores, group_advantage, mean_negative, scale_cost, score_group, success, token_cost

# One input, K = 4 allocations, 4 candidates of which the last is excluded (and would beat every positive).
#
#   k   positive   negatives that count   mean   gap g   ranks first a   reward a·g   cost c
#   1   0.9        0.3  0.2  0.1          0.2    0.7     1               0.7          0.50
#   2   0.6        0.5  0.1  0.0          0.2    0.4     1               0.4          0.25
#   3   0.5        0.2  0.2  0.2          0.2    0.3     1               0.3          0.75
#   4   0.6        0.6 −0.1 −0.2          0.1    0.5     0 (a tie)       0.0          0.00
#
# Equation 17: mean 0.35, deviations ±0.35 and ±0.05, variance (2·0.1225 + 2·0.0025) / 4 = 0.0625, std 0.25;
#              with ε = 1e-4 the deviations are divided by 0.2501.
# Equation 19: (g − 0.45) / 0.10 = 2.5, −0.5, −1.5, 0.5, through the logistic function.
# Equation 20: 0.4 · 0.924142 · 0.50 = 0.184828;  0.4 · 0.377541 · 0.75 = 0.113262;
#              0.4 · 0.182426 · 0.25 = 0.018243;  0 for the failure.
POSITIVE = torch.tensor([0.9, 0.6, 0.5, 0.6])
NEGATIVES = torch.tensor([[0.3, 0.2, 0.1, 0.99], [0.5, 0.1, 0.0, 0.99], [0.2, 0.2, 0.2, 0.99], [0.6, -0.1, -0.2, 0.99]])
MASK = torch.tensor([True, True, True, False])
COST = torch.tensor([0.5, 0.25, 0.75, 0.0])
FULL = {
    "success": [1, 1, 1, 0],
    "gap": [0.7, 0.4, 0.3, 0.5],
    "reward": [0.7, 0.4, 0.3, 0.0],
    "retrieval_advantage": [0.35 / 0.2501, 0.05 / 0.2501, -0.05 / 0.2501, -0.35 / 0.2501],
    "confidence": [0.924142, 0.377541, 0.182426, 0.622459],
    "incentive": [0.184828, 0.113262, 0.018243, 0.0],
    "advantage": [1.399440 + 0.184828, 0.199920 + 0.113262, -0.199920 + 0.018243, -1.399440],
}
# What each row of the paper's ablation table changes, by hand:
#   success only: mean 0.75, variance (3·0.0625 + 0.5625) / 4 = 0.1875, std 0.433013 (+ 0.0001)
#   gap only:     mean 0.475, variance (0.050625 + 0.005625 + 0.030625 + 0.000625) / 4 = 0.021875, std 0.147902
ABLATIONS = {
    "Retrieval Success Only": (
        RewardOptions(reward="success"),
        {"reward": [1, 1, 1, 0], "retrieval_advantage": [0.577217, 0.577217, 0.577217, -1.731651]},
    ),
    "Similarity Gap Only": (
        RewardOptions(reward="gap"),
        {"reward": FULL["gap"], "retrieval_advantage": [1.520250, -0.506750, -1.182417, 0.168917]},
    ),
    "w/o Confidence Guidance": (
        RewardOptions(confidence=False),
        {"confidence": [1, 1, 1, 1], "incentive": [0.2, 0.3, 0.1, 0.0]},
    ),
    "w/o Success Gating": (RewardOptions(success_gate=False), {"incentive": [0.184828, 0.113262, 0.018243, 0.248984]}),
    "w/o Efficiency Incentive": (RewardOptions(efficiency_weight=0), {"incentive": [0, 0, 0, 0]}),
}


def score(options: RewardOptions = RewardOptions()) -> Scores:  # noqa: B008
    return score_group(POSITIVE, NEGATIVES, MASK, COST, options)


def assert_scores(scores: Scores, expected: dict[str, list[float]]) -> None:
    for field in fields(Scores):
        actual = getattr(scores, field.name).float()
        torch.testing.assert_close(
            actual, torch.tensor(expected[field.name]).float(), atol=2e-6, rtol=0, msg=field.name
        )


def test_the_worked_example_comes_out_as_by_hand():
    assert_scores(score(), FULL)


@pytest.mark.parametrize("row", ABLATIONS)
def test_an_ablation_changes_its_own_term_and_no_other(row):
    options, changes = ABLATIONS[row]
    expected = FULL | changes
    retrieval, incentive = expected["retrieval_advantage"], expected["incentive"]
    expected["advantage"] = [first + second for first, second in zip(retrieval, incentive, strict=True)]
    assert_scores(score(options), expected)


def test_centring_takes_the_mean_off_the_incentive_within_the_advantage_only():
    mean = (0.184828 + 0.113262 + 0.018243) / 4
    expected = FULL | {"advantage": [value - mean for value in FULL["advantage"]]}
    assert_scores(score(RewardOptions(centre_efficiency=True)), expected)


def test_gamma_and_tau_move_confidence_as_equation_19_says():
    moved = score(RewardOptions(gamma=0.5, tau=0.2)).confidence
    torch.testing.assert_close(moved, torch.sigmoid(torch.tensor([1.0, -0.5, -1.0, 0.0])))


def test_epsilon_tames_the_advantage_of_nearly_equal_rewards():
    nearly = torch.tensor([0.5, 0.5 + 3e-6])
    assert group_advantage(nearly, 1e-9).abs().max() > 0.9
    assert group_advantage(nearly).abs().max() < 0.03


def test_groups_are_scored_apart_from_each_other():
    batch = score_group(
        torch.stack([POSITIVE, POSITIVE.flip(0)]),
        torch.stack([NEGATIVES, NEGATIVES.flip(0)]),
        torch.stack([MASK, MASK]),
        torch.stack([COST, COST.flip(0)]),
    )
    for field in fields(Scores):
        alone = getattr(score(), field.name)
        torch.testing.assert_close(getattr(batch, field.name), torch.stack([alone, alone.flip(0)]))


def test_a_tie_with_any_negative_is_a_failure():
    positive = torch.full((3,), 0.5)
    negatives = torch.tensor([[0.5, 0.1], [0.49, 0.1], [0.1, 0.51]])
    assert success(positive, negatives, torch.ones(2, dtype=torch.bool)).tolist() == [False, True, False]


def test_a_backbone_that_maps_everything_to_one_point_succeeds_never():
    scores = score_group(torch.ones(4), torch.ones(4, 9), torch.ones(9, dtype=torch.bool), torch.zeros(4))
    assert not scores.success.any() and not scores.advantage.any()


@pytest.mark.parametrize("centre", [False, True])
def test_a_group_that_fails_throughout_has_no_advantage(centre):
    options = RewardOptions(centre_efficiency=centre)
    scores = score_group(POSITIVE, NEGATIVES + 1, MASK, COST, options)
    assert not scores.success.any() and not scores.advantage.any()


@pytest.mark.parametrize("k", [1, 3, 7, 16])
@pytest.mark.parametrize("reward", ["validated", "success", "gap"])
def test_equal_allocations_have_exactly_no_advantage_over_each_other(k, reward):
    options = RewardOptions(reward=reward, centre_efficiency=True)
    scores = score_group(POSITIVE[:1].expand(k), NEGATIVES[:1].expand(k, -1), MASK, torch.full((k,), 0.3), options)
    assert scores.success.all() and not scores.retrieval_advantage.any() and not scores.advantage.any()
    assert (scores.incentive > 0).all()


def test_advantages_have_mean_zero_and_unit_mean_square_for_every_group_size():
    generator = torch.Generator().manual_seed(0)
    for k in (2, 4, 16):
        values = group_advantage(torch.rand(5, k, generator=generator).double(), 1e-12)
        torch.testing.assert_close(values.mean(-1), torch.zeros(5).double(), atol=1e-12, rtol=0)
        torch.testing.assert_close(values.square().mean(-1), torch.ones(5).double())


@pytest.mark.parametrize("options", [RewardOptions(), *(options for options, _ in ABLATIONS.values())])
def test_a_query_without_negatives_has_no_advantage_and_spoils_no_other(options):
    masks = torch.stack([torch.zeros_like(MASK), MASK])
    both = score_group(POSITIVE.expand(2, -1), NEGATIVES.expand(2, -1, -1), masks, COST.expand(2, -1), options)
    for field in fields(Scores):
        assert getattr(both, field.name).isfinite().all()
        torch.testing.assert_close(getattr(both, field.name)[1], getattr(score(options), field.name))
    assert not both.advantage[0].any() and not both.incentive[0].any()


def test_a_candidate_set_of_nobody_is_no_negatives_too():
    scores = score_group(POSITIVE, NEGATIVES[:, :0], MASK[:0], COST)
    assert not scores.success.any() and not scores.advantage.any()


def test_excluded_negatives_are_never_read():
    spoilt = NEGATIVES.masked_fill(~MASK, torch.nan)
    assert_scores(score_group(POSITIVE, spoilt, MASK, COST), FULL)


def test_the_mask_belongs_to_the_query_not_to_the_allocation():
    masks = torch.tensor([[True, False], [False, True]])
    negatives = torch.tensor([[[0.1, 0.5]] * 3, [[0.1, 0.5]] * 3])
    torch.testing.assert_close(mean_negative(negatives, masks), torch.tensor([[0.1] * 3, [0.5] * 3]))


def test_half_precision_similarities_are_averaged_in_float32():
    # 0.1 in bfloat16 is 0.10009765625; a bfloat16 sum of 4,096 of them would stall long before 410.
    negatives = torch.full((2, 4096), 0.1, dtype=torch.bfloat16)
    positive = torch.tensor([0.5, 0.75], dtype=torch.bfloat16)
    mask, cost = torch.ones(4096, dtype=torch.bool), torch.zeros(2, dtype=torch.bfloat16)
    scores = score_group(positive, negatives, mask, cost)
    torch.testing.assert_close(scores.gap, torch.tensor([0.5, 0.75]) - 0.10009765625, atol=1e-6, rtol=0)
    assert all(getattr(scores, field.name).dtype == torch.float32 for field in fields(Scores)[1:])


def test_scale_cost_counts_valid_chunks_and_stays_in_its_bounds():
    scales = torch.tensor([[[0.2, 1.0, 9.0]], [[1.8, 1.8, 1.8]], [[3.0, 3.0, 3.0]], [[0.1, 0.1, 0.1]]])
    valid = torch.tensor([[True, True, False], [True, True, True], [True, True, True], [True, True, True]])
    torch.testing.assert_close(scale_cost(scales, valid), torch.tensor([[0.25], [1.0], [1.0], [0.0]]))
    assert scale_cost(scales, torch.zeros_like(valid)).isfinite().all()


def test_a_range_of_one_scale_costs_nothing_extra():
    assert scale_cost(torch.ones(2, 3), scale_range=(1.0, 1.0)).tolist() == [0.0, 0.0]


def test_token_cost_sees_the_spread_that_scale_cost_cannot():
    scales = torch.tensor([[0.2, 1.8], [1.0, 1.0]])
    tokens = (scales.square() * 100).sum(-1).round().long()  # 328 and 200 tokens
    assert scale_cost(scales).tolist() == pytest.approx([0.5, 0.5])
    assert token_cost(tokens, most=648, least=8).tolist() == pytest.approx([0.5, 0.3])


def test_token_cost_is_finite_where_both_ends_of_the_range_give_the_same_grids():
    assert token_cost(torch.tensor([12, 12]), most=12, least=12).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("reward", "rank", "must be validated, success, gap or cosine"),
        ("efficiency_weight", -0.1, "0 or more"),
        ("tau", 0.0, "tau must be greater than 0"),
        ("epsilon", 0.0, "epsilon must be greater than 0"),
        ("epsilon", float("nan"), "epsilon must be a finite number, not nan"),
    ],
)
def test_options_refuse_what_cannot_be_meant(field, value, message):
    with pytest.raises(ValueError, match=message):
        RewardOptions(**{field: value})


def test_shapes_that_would_broadcast_by_accident_are_refused():
    with pytest.raises(ValueError, match="the mask"):
        score_group(POSITIVE, NEGATIVES, MASK.expand(4, 4), COST)
    with pytest.raises(ValueError, match="the cost"):
        score_group(POSITIVE, NEGATIVES, MASK, COST[:1])
    with pytest.raises(ValueError, match="must be bool"):
        score_group(POSITIVE, NEGATIVES, MASK.float(), COST)
