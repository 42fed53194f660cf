"""How long anybody waits for anything."""

from __future__ import annotations

from pydantic import Field

from stretto.config.sections import Section


class Deadlines(Section):
    """Seconds on the run's clock. Whoever waits longer ends with an error or a ledger record that says for what."""

    startup_s: float = Field(300.0, gt=0, description="Each start-up phase of a worker.")
    rollout_s: float = Field(
        600.0, gt=0, description="One trajectory; then it fails and, while its group has time, is replaced."
    )
    group_s: float = Field(1200.0, gt=0, description="One group; it closes with >= 2 valid members or fails.")
    score_s: float = Field(
        20.0, gt=0, description="One reward or tool call, on the wall clock in every mode; its process is killed."
    )
    late_s: float = Field(86400.0, gt=0, description="One late reward, from its promise on; then it is dropped.")
    step_s: float = Field(1800.0, gt=0, description="One learner step.")
    publish_s: float = Field(120.0, gt=0, description="One weight update on all engines.")
    batch_s: float = Field(3600.0, gt=0, description="The learner's wait for a batch.")
    shutdown_s: float = Field(10.0, gt=0, description="Orderly end of a worker before it is killed.")
    stop_s: float = Field(
        300.0, gt=0, description="From a signal (SIGINT, SIGTERM, SIGHUP) to the end of the run, on the wall clock: "
        "finish the running step and save. Then the run ends unsaved; a second signal ends it at once."
    )  # fmt: skip
    warn_s: float = Field(30.0, gt=0, description="A longer wait is logged with what it waits for.")
