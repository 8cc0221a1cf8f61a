"""Run several commands side by side on one GPU, with a time limit and a log for each.

    python recipes/side_by_side.py --minutes 8 --logs out/logs jobs.txt

`jobs.txt` has one job per line, "name: command". Nano runs are too small to fill a large GPU: under CUDA's
multi-process service, which is started if it is there, a dozen of them run at nearly full speed each. A job that is
still running at the limit is ended. Exit status 1 if a job failed. In recipes/jobs, `$R` is the folder of the training
runs and `$OUT` that of the results.
"""

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    lines = [line.strip() for line in options.jobs.read_text().splitlines()]
    jobs = dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryDirectory() as pipes:
        service = shutil.which("nvidia-cuda-mps-control")
        if service:
            environment |= {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
            subprocess.run([service, "-d"], env=environment, check=False)
        try:
            return run(jobs, environment, options)
        finally:
            if service:
                subprocess.run([service], input="quit\n", text=True, env=environment, check=False)


def run(jobs: dict[str, str], environment: dict[str, str], options: argparse.Namespace) -> int:
    """Start all jobs, wait for them or for the limit, and print the end of each log."""
    started, running = time.monotonic(), {}
    for name, command in jobs.items():
        with (options.logs / f"{name}.log").open("w") as log:
            running[name] = subprocess.Popen(
                ["bash", "-c", command], stdout=log, stderr=log, env=environment, start_new_session=True
            )
    while any(each.poll() is None for each in running.values()):
        if time.monotonic() - started > 60 * options.minutes:
            for each in running.values():
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGTERM)
            break
        time.sleep(0.5)
    failed = 0
    for name, each in running.items():
        try:
            status = each.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(each.pid, signal.SIGKILL)
            status = each.wait()
        failed += status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        tail = (options.logs / f"{name}.log").read_text(errors="replace").splitlines()[-3:]
        print(f"{name}: status {status}", *tail, sep="\n  ", flush=True)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
