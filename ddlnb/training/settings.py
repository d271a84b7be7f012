"""The settings of a training run: one definition for the library, the command line and saved runs.

Importing this module loads neither torch nor pandas, since the command line takes its defaults and
help texts from here; torch is loaded when settings are made.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, fields
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import SkipValidation

from ddlnb.errors import require, require_known
from ddlnb.questions import WORDS, Asked, LaterWhole, MaybeWhole, Natural, Whole, one_of, question

if TYPE_CHECKING:
    from ddlnb.training.executors.clock import Clock
    from ddlnb.training.method import TrainingJob, TrainingMethod
    from ddlnb.training.optimizers import Optimizer, RateSchedule
    from ddlnb.training.tasks.task import LearningTask, Split
else:  # what these are is checked where they are looked up
    Clock = TrainingMethod = Optimizer = RateSchedule = LearningTask = Split = Any

LOCKSTEP = "lockstep"
EXECUTORS = (LOCKSTEP, "distributed", "byteps")
EVALUATIONS = 20  # rows of a curve behind the first one, unless evaluate_every says otherwise
RATE_SPAN = 2.0**24  # a float32 keeps 24 bits: steps that differ by more cannot both be sensible


@question
class TrainingSettings:
    """What one run of one method on one task depends on, but for the processes that it uses.

    Choices may be given as text: ``method="local(8)"``, ``split="non-iid(0.1)"``;
    the fields then hold what the text stands for. ``local_batch`` and ``lr`` that are left out are
    those of the task and of the optimizer; ``clock`` gives the virtual seconds of gradients and
    messages. `training_settings` makes one from keywords.

    Raises UnknownName and InputError, and MissingPart if the executor needs what this machine
    lacks.

    >>> import ddlnb
    >>> settings = ddlnb.training.TrainingSettings("quadratic", "local(8)", workers=4, steps=16)
    >>> str(settings.method), settings.lr, settings.local_batch
    ('local(8) on A2A', 0.1, 1)
    """

    task: Annotated[LearningTask, Asked("A task of `ddlnb train --list`. Default: digits.")]
    method: Annotated[
        TrainingMethod,
        Asked(
            "Such as 'bsp', 'ssp(3)' or 'bsp + top-k(0.01) + feedback on A2A'. Repeatable.",
            kind=WORDS,
        ),
    ]
    _: KW_ONLY
    workers: Annotated[Whole, Asked("Workers that train together.")] = 8
    steps: Annotated[Whole, Asked("Gradients of every worker.")] = 300
    local_batch: Annotated[
        LaterWhole, Asked("Samples of a gradient; default: the task's own number.")
    ] = None  # type: ignore[assignment]
    lr: Annotated[
        SkipValidation[float],
        Asked("Learning rate; default: the optimizer's first guess."),
    ] = None  # type: ignore[assignment]
    optimizer: Annotated[
        Optimizer, Asked("Such as sgd, momentum(0.9, 0.0005) or lars(0.01); see --list.")
    ] = "sgd"  # type: ignore[assignment]
    schedule: Annotated[
        RateSchedule,
        Asked("Schedule of the learning rate: constant, warm-up(50), cosine(50)."),
    ] = "constant"  # type: ignore[assignment]
    split: Annotated[
        Split, Asked("Split of the samples: iid, or non-iid(0.1); less skews labels more.")
    ] = "iid"  # type: ignore[assignment]
    seed: Annotated[Natural, Asked("Seed of the model, samples and batches.")] = 0
    clock: Clock | None = None
    evaluate_every: Annotated[
        MaybeWhole, Asked(f"Steps between rows; default: {EVALUATIONS} rows a run.")
    ] = None
    executor: Annotated[
        str,
        one_of(*EXECUTORS),
        Asked("lockstep, distributed (processes over gloo and our parameter servers) or byteps."),
    ] = LOCKSTEP

    def __post_init__(self) -> None:
        from ddlnb.training.method import training_method
        from ddlnb.training.optimizers import get_optimizer, get_schedule
        from ddlnb.training.tasks.catalogue import get_learning_task
        from ddlnb.training.tasks.task import get_split

        self._set("task", get_learning_task(self.task))
        self._set("method", training_method(self.method))
        self._set("optimizer", get_optimizer(self.optimizer))
        self._set("schedule", get_schedule(self.schedule))
        self._set("split", get_split(self.split))
        if self.local_batch is None:
            self._set("local_batch", self.task.local_batch)
        if self.lr is None:
            self._set("lr", self.optimizer.first_rate(self.task))
        self.schedule.require_fits(self.steps)
        self._check_rate()
        self.method.check_optimizer(self.optimizer)
        self._check_executor()
        self.job()  # which refuses what no executor can run

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_rate(self) -> None:
        require(
            isinstance(self.lr, Real) and not isinstance(self.lr, bool),
            f"learning rate {self.lr!r} is no number; give one such as 0.1",
        )
        self._set("lr", float(self.lr))  # also NumPy's
        guess = self.optimizer.first_rate(self.task)
        least, most = guess / RATE_SPAN, guess * RATE_SPAN
        require(
            least <= self.lr <= most,
            f"learning rate {self.lr!r} must be between {least:.1g} and {most:.1g}: below, no step "
            f"changes a float32 parameter, and beyond, the first step leaves nothing of the model; "
            f"a fair first guess for {self.optimizer} on {self.task.name} is {guess:g}",
        )

    def _check_executor(self) -> None:
        if self.executor != LOCKSTEP:
            from ddlnb.training.executors.distributed import require_trains

            require(
                self.clock is None,
                "a straggler, on a virtual clock, is for lockstep; real processes take real time",
            )
            require_trains(self.executor, self.method)

    @property
    def every(self) -> int:
        """Steps between two rows of the curve."""
        if self.evaluate_every is None:
            return max(1, self.steps // EVALUATIONS)
        return self.evaluate_every

    def job(self) -> TrainingJob:
        """Return the run as a job for any executor; data are loaded where it runs."""
        from ddlnb.training.method import TrainingJob

        task = self.task
        return TrainingJob(
            self.method,
            partial(task.build, self.seed),
            task.loss,
            partial(task.batches, self.split, self.workers, self.local_batch, self.seed),  # type: ignore[arg-type]
            partial(self.optimizer.make, lr=self.lr),
            self.workers,
            self.steps,
            self.seed,
            schedule=partial(self.schedule.factor, steps=self.steps),
        )

    def columns(self) -> dict[str, object]:
        """Return the columns of the run's curve that say under which settings it was made."""
        return {
            "task": self.task.name,
            "method": str(self.method),
            "synchronisation": str(self.method.synchronisation),
            "compression": str(self.method.compressor or "none"),
            "feedback": self.method.feedback,
            "architecture": self.method.architecture,
            "workers": self.workers,
            "local_batch": self.local_batch,
            "split": str(self.split),
            "optimizer": str(self.optimizer),
            "schedule": str(self.schedule),
            "learning_rate": self.lr,
            "seed": self.seed,
            "executor": self.executor,
        }


def training_settings(
    task: str | LearningTask, method: str | TrainingMethod, **options: Any
) -> TrainingSettings:
    """Return the settings of a run; ``options`` are fields of `TrainingSettings`, by keyword.

    Raises UnknownName for an option that is none, and what `TrainingSettings` raises.

    >>> training_settings("digits", "local(8)", workers=4, steps=100).lr
    0.2
    """
    known = [one.name for one in fields(TrainingSettings)]
    for name in options:
        require_known("training setting", name, known)
    return TrainingSettings(task, method, **options)  # type: ignore[arg-type]
