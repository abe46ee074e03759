"""The end of a job in words: its figures, its lines on the terminal, and the next command to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hmi.cli.framework.output import size
from hmi.cli.framework.second_version import improved
from hmi.sizes import counted
from hmi.training.tasks.headline import headline_name

Figures = dict[str, str]


def figures(view: Mapping[str, Any]) -> Figures:
    """Return a succeeded job's figures by table heading.

    A figure that the server does not send, because it is of another version, is left out.
    """
    result = view["result"] or {}
    if view["kind"] == "fine_tune":
        return _of_model(result)
    if view["kind"] == "improve":
        return improved(result)
    if view["kind"] == "build_plot":
        return _of_plot(result)
    if view["kind"] == "erase":
        return _of_erasure(result)
    if view["kind"] == "profile_cascade":
        return _of_cascade(result)
    if view["kind"] == "shard_root":
        agree = ", ".join(f"{bits} bits {x:.2%}" for bits, x in result.get("agreement", {}).items())
        return {"size": size(result["bytes"]), "answers as in full": agree or "not measured: give a text"}
    if "repaired" in result:
        return {"repaired": ", ".join(result["repaired"]) or "nothing: its files are sound"}
    return {}


def lines(view: Mapping[str, Any], told: Collection[str] = ()) -> list[str]:
    """Return the lines that describe how a succeeded job ended, without the remarks that were `told`."""
    result = view["result"] or {}
    version = result.get("version")
    target = f"{view['target']}, version {version}" if version is not None else str(view["target"])
    shown = [f"done: {view['kind']} {target} (job {view['job']})"]
    found = figures(view)
    shown += [f"  {name}: {value}" for name, value in found.items()]
    warnings = (result.get("metrics") or {}).get("warnings", ())
    shown += [f"  note: {warning}" for warning in warnings if warning not in told]
    after = _next(view["kind"], str(view["target"]), result)
    return [*shown, f"next: {after}"] if after else shown


def _of_model(result: Mapping[str, Any]) -> Figures:
    metrics = result.get("metrics") or {}
    found: Figures = {}
    # If nothing else was trained, scores and epochs are those of the old version.
    if result.get("only_ramps"):
        return {"ramps": _ramps(metrics["ramps"]), "size": size(result["bytes"])}
    if result.get("only_tokens"):
        return {**_tokens(metrics["tokens"]), "size": size(result["bytes"])}
    name = headline_name(metrics)
    if name is not None:
        found["score"] = f"{name} {metrics[name]:.4g} on {_held_out(metrics)}"
    if metrics.get("live"):
        found["compared"] = compared(metrics["live"], name)
    if "train_rows" in metrics:
        found["trained on"] = counted(metrics["train_rows"], "row")
    if "epochs_run" in metrics:
        found["epochs"] = _epochs(metrics)
    if metrics.get("ramps"):
        found["ramps"] = _ramps(metrics["ramps"])
    if "bytes" in result:
        found["size"] = size(result["bytes"])
    return found


def _held_out(metrics: Mapping[str, Any]) -> str:
    return counted(metrics["rows"], "held-out row") if "rows" in metrics else "held-out rows"


def _ramps(ramps: Mapping[str, Any]) -> str:
    each = ", ".join(f"{site['agreement']:.3g} (before layer {site['site']})" for site in ramps["sites"])
    return f"answer as the model: {each}, on {counted(ramps['texts'], 'held-out text')}"


def _tokens(tokens: Mapping[str, Any]) -> Figures:
    sets = [
        f"{each['count']}: {each['before']:.4g} became {each['score']:.4g}, "
        + ("kept" if each["kept"] else "not kept")
        for each in tokens["prompts"]
    ]
    seen = "" if tokens["unseen"] else ", some of which the model was trained on"
    return {
        "profiled on": f"{tokens['rows']} texts, {tokens['labelled']} of them labelled{seen}",
        "prompts": f"{tokens['metric']} with {'; '.join(sets)}" if sets else "not trained",
    }


def compared(live: Mapping[str, Any], name: str | None) -> str:
    """Describe the new and the live version's scores on the same rows, which may be fewer than those held
    out.

    `name` is the metric, for servers that do not send it.
    """
    seen = (
        f", {live['seen_rows']} of which version {live['version']} was trained on"
        if live["seen_rows"]
        else ""
    )
    scores = (
        f"{live.get('metric') or name} {live['score']:.4g} (new), {live['live_score']:.4g} (version "
        f"{live['version']}, "
        f"live before it), on the same {counted(live['rows'], 'held-out row')}{seen}"
    )
    if not live.get("near_chance"):  # a server of an earlier version does not send it
        return scores
    return f"{scores}; both are near chance ({live['chance']:.4g}, by one answer for every row)"


def _epochs(metrics: Mapping[str, Any]) -> str:
    run, planned, best = metrics["epochs_run"], metrics["epochs"], metrics["epoch"]
    if run < planned:
        return f"{run} of {planned}, stopped early: none was better than epoch {best}, which is kept"
    return f"{run} of {planned}, all that were planned; epoch {best} is kept"


def _of_cascade(result: Mapping[str, Any]) -> Figures:
    seen = f"; {result['seen_rows']} that a level was trained on were left out" if result["seen_rows"] else ""
    return {
        "rows": f"{halves(result)}{seen}",
        **{
            level: f"accuracy {result[f'{level}_accuracy']:.4g}, {result[f'{level}_ms']:.3g} ms a text"
            for level in ("small", "large")
            if result[f"{level}_accuracy"] is not None and result[f"{level}_ms"] is not None
        },
        "offers": str(result["offers"]) if result["offers"] else "none is faster than the large level alone",
    }


def halves(profile: Mapping[str, Any]) -> str:
    """Describe the rows of a cascade's profile, or of its job's result."""
    rows, judged = profile["rows"], profile.get("judged")  # an earlier version does not tell
    if not judged:
        return f"{rows}; about half of them measured what is shown"
    if judged == rows:
        return f"{rows}, which chose the dispatchers and measured what is shown"
    return f"{rows}: {rows - judged} chose the dispatchers; the other {judged} measured what is shown"


def _of_plot(result: Mapping[str, Any]) -> Figures:
    found: Figures = {}
    stored = {k.removeprefix("stored_"): n for k, n in result.items() if k.startswith("stored_")}
    if "tokens" in result and not stored:
        return {"text": f"{result['tokens']:,} tokens, kept for trainings; the root looks up no n-grams"}
    if stored:
        each = ", ".join(f"{count:,} {order}" for order, count in stored.items())
        found["n-grams"] = f"{sum(stored.values()):,} ({each})"
    if result.get("alpha") is not None and "tokens" in result:
        found["coverage"] = (
            f"{result['alpha']:.3g}% of the n-grams that occur in {result['tokens']:,} tokens of text"
        )
    if "bytes" in result:
        found["size"] = size(result["bytes"])
        if result.get("text_bytes"):
            times = result["bytes"] / result["text_bytes"]
            found["size"] += f", {times:.3g} times the text; a smaller one: --alpha or --budget"
    return found


def _of_erasure(result: Mapping[str, Any]) -> Figures:
    each = ", ".join(
        f"{count:,} of {order} tokens" for order, count in sorted(result["ngrams"].items()) if count
    )
    found = {
        "n-grams": f"{sum(result['ngrams'].values()):,}{f' ({each})' if each else ''}, "
        f"in {counted(len(result['versions']), 'version')} of {', '.join(result['domains']) or 'no domain'}",
        "passages": f"{result['passages']:,} of the domain's sample",
        "misses": f"all {result['misses']:,} that were recorded",
    }
    if result["left"]:
        found["left"] = f"{', '.join(result['left'])}: run 'hmi store gc' in an hour"
    if result["pretrained"]:
        found["lower layers"] = (
            "they were trained on the corpus, and stay: create the domain anew without the text"
        )
    return found


def _next(kind: str, target: str, result: Mapping[str, Any]) -> str | None:
    task = " --task generation" if result.get("generates") else ""
    if result.get("only_ramps"):
        return f"hmi model objective {target} --agreement 0.99"
    if result.get("only_tokens"):
        return f"hmi model tokens {target}, then hmi model objective {target} --agreement-under-load 0.97"
    if kind == "fine_tune" and result.get("task") == "generation":
        return f"hmi generate {target} PROMPT, or hmi model report {target}"
    if kind == "fine_tune":
        return f"hmi infer {target} TEXT, or hmi model report {target}"
    if kind == "build_plot":
        return f"hmi model create TENANT.MODEL ROWS --domain {target}{task}"
    if kind == "profile_cascade":
        return f"hmi model objective {target} --agreement 0.99, then hmi model cascade show {target}"
    if kind == "import_root":
        return f"hmi domain create {target}/NAME CORPUS; without a corpus, --domain {target}{task} works, too"
    return None
