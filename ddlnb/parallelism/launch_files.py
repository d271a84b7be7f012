"""Launch files: what they say of a layout, a batch and a model; and a layout as one writes it down.

Read are shell scripts and command lines (torchrun and arguments behind it), TOML, JSON and YAML of
the frameworks in `FORMATS`. What an option is about stands in `ddlnb.parallelism.settings`; one
that stands nowhere is named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ddlnb.errors import InputError, require, require_whole
from ddlnb.parallelism.config import shape_in, shape_of
from ddlnb.parallelism.layout import Layout
from ddlnb.parallelism.model import Transformer
from ddlnb.parallelism.scripts import flags
from ddlnb.parallelism.settings import (
    FORMATS,
    LAUNCHERS,
    LAYERS,
    MODEL,
    SPLITS,
    Fields,
    Format,
)
from ddlnb.reading import json_of, read_text, reading, toml_of, yaml_of

# Options that change nothing which forecasts are about: data, learning, files, logs.
NEUTRAL = re.compile(
    r"^(?!.*(offload|parallel|quant|fp8|precision_aware|(?<!checkpoint\.)async|comm_overlap))"
    r"(checkpoint\.|(.*[._])?("
    r"lr|learning_rate|warmup|decay|adam|beta[12_]|sgd|momentum|optim$|optimizer$|optimizer\.|clip|seed|"
    r"init_method|loss_scale|epsilon|eps|dropout|data|tokeniz|vocab_file|merge_file|split|"
    r"num_workers|pin_memory|drop_last|shuffle|log|report|wandb|tensorboard|metrics|profil|comm\.|"
    r"flops_profiler|save|load|ckpt|checkpoints|resum|output_dir|run_name|project|job\.|general|"
    r"eval|valid|exit|train_iters|train_samples|epochs|steps$|steps_per_print|description|"
    r"master|rdzv|node_rank|machine_rank|main_process|main_training|rendezvous|port$|backend|"
    r"local_rank|hosts?file|env|time_limit|account|(?<!_)partition$|job_name|distributed_type|"
    r"transformer_impl|use_mcore|use_flash|attention_backend|fused|fusion|masked_softmax|"
    r"compute_environment|downcast_bf16|same_network|debug|dynamo|rotary|rope|normalization|"
    r"make_vocab|timeout|manual_gc|allow_tf32|tf32|ddp_find|print|dump|wall_clock|auto_map|"
    r"scheduler|zero_allow|hf_assets|folder|auto_wrap|wrap_policy|"
    r"transformer_layer_cls|state_dict_type|cpu_ram|backward_prefetch|forward_prefetch|use_orig|"
    r"fsdp_version|contiguous_gradients|bucket_size|sub_group|sync_module|distributed_timeout|"
    r"max_norm|max_grad_norm|"
    r"moe_(grouped_gemm|router_(?!topk|num_groups|group_topk)|aux|z_loss|permute_fusion)))"
)
COMPILED = "-compiled"  # how frameworks end whose programs are
TEXTS = ("model", "flavor", "expert_layers")  # fields that may be no numbers
WRITTEN = ("micro_batch", "micro_batches", "global_batch", "zero")  # also if usual
_FOLLOWING = ("global_batch", "micro_batches")  # from others, or from what is usual
_GPUS_OF = ("nproc_per_node", "gpus_per_node", "num_gpus", "num_processes")
OPTIMIZER = re.compile(r"(^|[._])optim(izer)?(\.name|\.type|_factory\.name)?$")
ADAM = re.compile(r"(fused_?)?adamw?(_hf|_torch|_torch_fused|_apex_fused)?")


@dataclass(frozen=True)
class Launch:
    """What launch files say: formats, fields by our names, and options that are not known.

    ``options`` are all that stand in them, by their own names.
    """

    formats: tuple[Format, ...]
    said: Mapping[str, Any]
    unknown: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def model(self) -> Transformer | str | None:
        """The model that is described, or its name if that is no large model; None without both.

        Raises InputError for sizes that are lacking.
        """
        sizes = {
            name.removeprefix(MODEL): value
            for name, value in self.said.items()
            if name.startswith(MODEL)
        }
        if "hidden_size" in sizes:
            return shape_of(sizes, f"model of {self.formats[0].name}", strict=False)
        name = str(self.said.get("model", ""))
        return shape_in(name.rpartition("/")[2]) or name or None

    @property
    def framework(self) -> str:
        """Whose steps are forecast: those of the format, compiled only where the files say so.

        Nobody's, where a framework that is not compiled splits layers: no fit is of that.
        """
        framework = self.formats[0].framework
        if self.said.get("compiled", False) or not framework.endswith(COMPILED):
            return framework
        is_split = self.said.get("tp", 1) > 1 or self.said.get("pp", 1) > 1
        return "" if is_split else framework.removesuffix(COMPILED)

    @property
    def layout(self) -> Layout:
        """The layout. Raises InputError where numbers are lacking or contradict each other."""
        said = dict(self.said)
        tp, pp, cp, micro = (said.get(name, 1) for name in ("tp", "pp", "cp", "micro_batch"))
        require_whole(tp=tp, pp=pp, cp=cp, micro_batch=micro)
        gpus, batch = said.get("gpus"), said.get("global_batch")
        if "dp" not in said:
            if gpus is None and batch and "micro_batches" in said:
                gpus = batch // (micro * said["micro_batches"]) * tp * pp * cp
            require(gpus is not None, "they do not say how many GPUs there are; give --nodes and "
                    "--gpus-per-node")  # fmt: skip
            said["dp"] = gpus // (tp * pp * cp)
        dp = said["dp"]
        require_whole(dp=dp)
        require(
            gpus in (None, dp * tp * pp * cp),
            f"dp {dp}, tp {tp}, pp {pp} and cp {cp} make {dp * tp * pp * cp} GPUs, and not the "
            f"{gpus} that there are; correct one of them, or give --nodes and --gpus-per-node",
        )
        rounds = said.setdefault("micro_batches", (batch or dp * micro) // (dp * micro))
        require(
            batch in (None, dp * micro * rounds),
            f"a batch of {batch} is not {dp} replicas times a micro batch of {micro} times "
            f"{rounds}; correct one of them",
        )
        if (copies := said.get("copies", 1)) > 1 and said.get("zero"):
            said["shard"] = dp * cp // copies
        if said.get("vpp", 1) > 1:
            said.setdefault("schedule", "interleaved")
        names = asdict(Layout())
        return Layout(**{name: value for name, value in said.items() if name in names})


def read_launch(
    paths: str | Path | Sequence[str | Path],
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> Launch:
    """Return what launch files of one run say together; given counts overrule theirs.

    Raises InputError for a file without options that are known, values that are not numbers, and
    files that say differently.
    """
    listed = [paths] if isinstance(paths, str | Path) else paths
    texts = {str(path): read_text(path) for path in listed}
    return _launch(texts, {"nodes": nodes, "gpus_per_node": gpus_per_node})


def counts_in(paths: Sequence[str | Path]) -> dict[str, int]:
    """Return what launch files say of the nodes and of the GPUs in each, where they do."""
    said, *_ = _said({str(path): read_text(path) for path in paths})
    if "gpus" in said:
        said["gpus_per_node"] = said["gpus"] // said.setdefault("nodes", 1)
    return {name: said[name] for name in ("nodes", "gpus_per_node") if name in said}


def _launch(texts: Mapping[str, str], given: Mapping[str, int | None]) -> Launch:
    said, formats, unknown, options = _said(texts)
    said |= {name: value for name, value in given.items() if value is not None}
    if "nodes" in said and "gpus_per_node" in said:
        said["gpus"] = said["nodes"] * said["gpus_per_node"]
    if "flavor" in said:  # torchtitan's llama3 and 8B
        said["model"] = f"{said.get('model', '')}-{said.pop('flavor')}"
    if shape := shape_in(str(said.get("model", "")).rpartition("/")[2]):
        said.setdefault(LAYERS, shape.layers)
    with reading(" and ".join(texts)):
        for form in formats:
            said = form.back(said)
    return Launch(tuple(formats) or FORMATS[:1], said, tuple(unknown), options)


def _said(texts: Mapping[str, str]) -> tuple[Fields, list[Format], list[str], Fields]:
    """Return the fields of files, their formats, options that are not known, and all options."""
    said: Fields = {}
    every: Fields = {}
    formats: list[Format] = []
    unknown: list[str] = []
    for place, text in texts.items():
        with reading(place):
            options = options_in(text, Path(place).suffix, place)
            every |= options
            form = max(FORMATS, key=lambda one: sum(name in _names(one) for name in options))
            known = {*_names(form), *(one.name for one in LAUNCHERS)}
            require(
                any(name in known for name in options),
                f"{place} has no option of {', '.join(one.name for one in FORMATS)} or torchrun; "
                f"give the file or the script that a run is started with",
            )
            found = _fields(form, options, place, unknown)
        for name, value in found.items():
            require(
                said.setdefault(name, value) == value,
                f"{place} says {name} {value}, and another file {said[name]}; correct one of them",
            )
        if any(name in _names(form) for name in options) and form not in formats:
            formats.append(form)
    tasks = said.pop("tasks", 0)  # of Slurm, which are launchers where others say the GPUs
    if tasks and "gpus" not in said and every.keys().isdisjoint(_GPUS_OF):
        said["gpus_per_node"] = tasks
    left = {**dict.fromkeys(_FOLLOWING), **said}  # to another file that is not there
    fields = {one.name: one.field for form in formats for one in (*form.options, *form.read)}
    unknown += [
        f"{name} auto"
        for name, value in every.items()
        if value == "auto" and name in fields and fields[name] not in left
    ]
    return said, formats, unknown, every


def _names(form: Format) -> set[str]:
    return {one.name for one in (*form.options, *form.read)}


def options_in(text: str, suffix: str = "", place: str = "the script") -> Fields:
    """Return the options that a text gives, by name; tables in tables have names with dots.

    The suffix of its file tells TOML and YAML; anything else is JSON or a script.
    """
    if suffix == ".toml":
        return _flat(toml_of(text, "its TOML"))
    if suffix in (".yaml", ".yml"):
        return _flat(yaml_of(text, "its YAML"))
    if text.lstrip().startswith("{"):
        return _flat(json_of(text, "its JSON"))
    return flags(text, place)


def _flat(tree: Any, above: str = "") -> Fields:
    found: Fields = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def _fields(form: Format, options: Fields, place: str, unknown: list[str]) -> Fields:
    """Return the fields that options are about; what is not known of them is added."""
    said: Fields = {}
    unused = tuple(
        name.removesuffix("device")
        for name, value in options.items()
        if name.endswith(".device") and value == "none"
    )  # what nothing is put off to
    for name, value in options.items():
        rows = [one for one in (*form.options, *form.read) if one.name == name]
        rows = rows or [one for one in LAUNCHERS if one.name == name]
        if isinstance(value, list) and any(row.says for row in rows):
            value = tuple(str(one) for one in value)
        is_list = isinstance(value, list)  # which says something, and nothing to a row
        is_unset = value in (None, "auto", [], ())
        is_read = is_unset or isinstance(value, dict) or (is_list and bool(rows))
        if form.rest and name.startswith(form.rest):
            said[MODEL + name.removeprefix(form.rest)] = value
            continue
        for row in rows if not is_read else ():
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= -1
            if row.says is not None:
                if isinstance(value, str) and {*row.says} == {True}:
                    value = True  # and the word behind a flag is another one
                is_read |= value in row.says
                if row.says.get(value) is not None:
                    said[row.field] = row.says[value]
            elif is_number or row.field in TEXTS:
                said[row.field], is_read = value, True
            elif row not in LAUNCHERS:
                raise InputError(
                    f"{place}: {name} is {value!r}, which is no whole number; write the number"
                )
        is_off = "offload" in name and (value is False or name.startswith(unused))
        is_other = _is_other_optimizer(name, value)
        is_neutral = is_off or (NEUTRAL.search(name) is not None and not is_other)
        if not is_read and (rows or not is_neutral):
            shown = list(value) if isinstance(value, tuple) else value
            alone = value is True or not (rows or is_other)
            unknown.append(name if alone else f"{name} {shown}")
    return said


def _is_other_optimizer(name: str, value: object) -> bool:
    """Return whether an option asks for an optimizer that keeps other states than Adam."""
    if not isinstance(value, str) or not OPTIMIZER.search(name):
        return False
    return ADAM.fullmatch(value.lower()) is None


def written(
    layout: Layout,
    form: Format,
    *,
    layers: int,
    sequence: int,
    precision: str = "bf16",
    overlap: bool = False,
    compiled: bool = True,
    gpus_per_node: int = 8,
) -> str:
    """Return a layout as this format has it: a command line, or the text of a file.

    ``overlap`` is whether replicas exchange while GPUs compute, ``compiled`` whether a format that
    can compile the model does. Raises InputError, with the words
    of the layout, for one that the format cannot say: read again, it would be another one.
    """
    counts = _counts(layout, gpus_per_node)
    about = {"sequence": sequence, "precision": precision, "overlap": overlap or None}
    options = _options_for(layout, form, about | {"compiled": compiled, LAYERS: layers})
    lost = {*str(plain(layout)).split()}
    with suppress(InputError):  # what it says may be no layout at all
        again = _again(form, options, counts, layers)
        if again == plain(layout):
            return TEXT[form.kind](options, counts)
        lost ^= {*str(again).split()}
    raise InputError(
        f"{form.name} has no words for {' '.join(sorted(lost))} in the layout {str(layout)!r}; "
        f"take another layout or format"
    )


def _counts(layout: Layout, gpus_per_node: int) -> dict[str, int]:
    if layout.ranks % gpus_per_node:
        return {"nodes": 1, "gpus_per_node": layout.ranks}
    return {"nodes": layout.ranks // gpus_per_node, "gpus_per_node": gpus_per_node}


def _again(form: Format, options: Fields, counts: Mapping[str, int], layers: int) -> Layout:
    """Return the layout that options say when they are read. Raises InputError."""
    suffix = "" if form.kind == "flags" else f".{form.kind}"
    text = TEXT[form.kind](options, counts)
    return plain(_launch({f"settings{suffix}": text}, {**counts, LAYERS: layers}).layout)


def _options_for(layout: Layout, form: Format, about: Fields) -> Fields:
    """Return the options of a format that say a layout, as far as it has words for it."""
    copies = layout.dp * layout.cp // layout.shards
    said = asdict(layout) | {"copies": copies, "global_batch": layout.samples} | about
    usual, out, options = {**asdict(Layout()), "copies": 1}, form.out(said), {}
    done: set[str] = set()
    for option in form.options:
        value = out.get(option.field)
        is_usual = option.field not in WRITTEN and value == usual.get(option.field)
        if value is None or option.field in done or (is_usual and form.kind in ("flags", "json")):
            continue
        texts = (
            [value] if option.says is None else [t for t, v in option.says.items() if v == value]
        )
        if texts:
            options[option.name] = texts[0]
            done.add(option.field)
    return options


def changes(
    launch: Launch,
    layout: Layout,
    *,
    layers: int,
    sequence: int,
    precision: str = "bf16",
    overlap: bool = False,
    compiled: bool = True,
    gpus_per_node: int = 8,
) -> list[str]:
    """Return what to take out of launch files (-), and to write into them (+), for a layout.

    Whoever does so has launch files that say the layout. Raises InputError where there are no such
    changes.
    """
    form = launch.formats[0]
    require(
        bool(form.options),
        f"{form.name}'s files are read here and not written; take {layout} into them by hand",
    )
    about = {"sequence": sequence, "precision": precision, "overlap": overlap or None}
    about |= {"compiled": compiled, LAYERS: layers}
    after = _options_for(layout, form, about)
    before: Fields = {}  # where the files say what the format has other words for
    with suppress(InputError):
        before = _options_for(launch.layout, form, about)
    fields = {one.name: one.field for one in (*form.options, *form.read)}
    mine = {name: value for name, value in launch.options.items() if name in fields}
    differs = {n for n, one in asdict(layout).items() if one != getattr(launch.layout, n)}
    out = {
        name
        for name in mine
        if (name in before and before[name] != after.get(name))
        or (name not in after and fields[name] in differs)
        or (name not in after and fields[name] in SPLITS and "pp" in differs)
    }
    other = {name for name, value in after.items() if before.get(name) != value}
    if "pp" in differs:
        other |= {name for name in after if fields[name] in SPLITS}
    batch = {name for name in after if fields[name] == "global_batch"}
    for more in (other, other | batch, other | (after.keys() - mine.keys())):
        added = {name: value for name, value in after.items() if name in more}
        kept = {name: value for name, value in mine.items() if name not in {*out, *added}}
        with suppress(InputError):
            counts = _counts(layout, gpus_per_node)
            if _again(form, kept | added, counts, layers) == plain(layout):
                out |= {name for name in added if name in mine}
                return [
                    *(f"- {_line(form, name, mine[name])}" for name in mine if name in out),
                    *(f"+ {_line(form, name, value)}" for name, value in added.items()),
                ]
    raise InputError(f"{form.name} has no words for {layout} beside the others of these files")


def _line(form: Format, name: str, value: Any) -> str:
    if form.kind == "flags":
        return f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}"
    return f"{name}{' =' if form.kind == 'toml' else ':'} {json.dumps(value)}"


def plain(layout: Layout) -> Layout:
    """Return the layout without what changes nothing: shards of what one rank holds alone."""
    whole = layout.dp * layout.cp
    shard = 0 if layout.shard == whole else layout.shard
    return replace(layout, zero=0, shard=0) if whole == 1 else replace(layout, shard=shard)


def _as_flags(options: Fields, counts: Mapping[str, int]) -> str:
    flags = [
        f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}"
        for name, value in options.items()
    ]
    start = "torchrun --nnodes {nodes} --nproc-per-node {gpus_per_node} pretrain_gpt.py"
    return " \\\n  ".join([start.format(**counts), *flags])


def _nested(options: Fields) -> Fields:
    tree: Fields = {}
    for name, value in options.items():
        *tables, key = name.split(".")
        inner = tree
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[key] = value
    return tree


def _as_toml(options: Fields, _: object) -> str:
    return "\n".join(
        f"[{table}]\n" + "\n".join(f"{key} = {json.dumps(one)}" for key, one in inner.items())
        for table, inner in _nested(options).items()
    )


def _as_yaml(options: Fields, _: object) -> str:
    import yaml

    return yaml.safe_dump(_nested(options), sort_keys=False).rstrip()


def _as_json(options: Fields, _: object) -> str:
    return json.dumps(_nested(options), indent=2)


TEXT = {"flags": _as_flags, "toml": _as_toml, "yaml": _as_yaml, "json": _as_json}
