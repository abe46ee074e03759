"""Tenants of language models, by the real jobs: training, report, updates, resumption, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hmi.config import Settings
from hmi.core import JobRecord, ModelId, ModelVersion
from hmi.errors import InvalidData, InvalidInput, NotFound
from hmi.jobs.improving.handing_over import may_improve
from hmi.jobs.model import fine_tune
from hmi.jobs.model.generation import MOST_TOKENS, compare_losses
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec
from hmi.manager import Manager
from hmi.model.network.decoder import attend_before, rotary
from hmi.model.sources.generative_root import GenerativeRoot, load_generative_root
from hmi.model.tenant.artefact import Artefact
from hmi.model.tenant.modules import TenantModule, module_from, new_module
from hmi.modulespec import GATED, ModuleSpec
from hmi.stores.layout import Layout
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row, read_labelled_rows
from hmi.training.fit.plan import TrainPlan
from hmi.training.plans.defaults import WRITING_MODULE
from hmi.training.tasks.row_keys import hold_out
from hmi.training.writing.lookup import RowsOf, rows_from_plot
from hmi.training.writing.scoring import perplexity, rouge_l, score_written
from hmi.training.writing.texts import written
from hmi.training.writing.trainer import WritingTrainer
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import attempt, run, tiny_manager
from tests.hmi.model.test_decoder import write_language_model
from tests.tiny import random_texts

ALL = {"sites": ",".join(GATED), "rank": 16}
QUICK = {"module": ALL, "lr": 0.01, "epochs": 30}
RULE = {"film": " rises", "plot": " the plot", "bad": " film", "good": " good film"}


def text(seed: int, lines: int) -> bytes:
    return "\n".join(random_texts(lines, seed, 5, 20)).encode()


def rows(count: int = 60, seed: int = 0, rule: dict[str, str] = RULE) -> bytes:
    """Rows whose completion follows from the prompt's last word."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        word = draw.choice([*rule])
        prompt = f"{draw.choice(['the', 'a'])} {draw.randrange(100)} {word}:"
        made.append({"prompt": prompt, "completion": rule[word]})
    return as_lines(*made)


def as_lines(*made: dict[str, Any]) -> bytes:
    return "\n".join(map(json.dumps, made)).encode()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A data folder with the root `tiny` of a random language model, its domain and a tenant."""
    base = tmp_path_factory.mktemp("writing")
    source = write_language_model("llama", base / "tiny-llama")
    opened = Manager(Settings(data=base / "data", job_workers=0))
    run(opened, opened.import_root("tiny", str(source), split=2, texts={"text-0": text(1, 280)}, alpha=10))
    run(opened, opened.create_domain("tiny/news", text(2, 30), alpha=100))
    opened.create_tenant("acme")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def rule(home: Manager) -> dict[str, Any]:
    """The result of the job that trained the model acme.rule."""
    return made(home, create(home, "rule", options=QUICK))


def create(home: Manager, name: str, data: bytes | None = None, **more: Any) -> JobRecord:
    given = {"domain": "tiny/news", "task": "generation", "data": rows() if data is None else data, **more}
    return home.create_model(f"acme.{name}", **given)


def made(home: Manager, job: JobRecord) -> dict[str, Any]:
    result = attempt(home, job, fine_tune.run)
    assert result is not None
    return result


def live(home: Manager, name: str) -> ModelVersion:
    return home.registry.model(ModelId("acme", name)).live


def root_of(home: Manager) -> GenerativeRoot:
    layout = Layout(home.settings.data)
    return load_generative_root(layout.root("tiny", home.registry.root("tiny").version))


def artefact_of(home: Manager, version: ModelVersion) -> Artefact:
    return Artefact.split(home._parts.adapters.get(version.artefact))


@torch.inference_mode()
def recomputed(
    root: GenerativeRoot, rows_of: RowsOf, module: TenantModule | None, ids: list[int]
) -> torch.Tensor:
    """The scores after each token of one text, computed in the most obvious way."""
    shape, x = root.info.shape, rows_of(torch.tensor([ids]))
    for i, layer in enumerate(root.upper.layers):
        more = {} if module is None else {"delta": module.delta(i)}
        x = layer(x, rotary(len(ids), shape.head_dim, shape.base), attend_before, **more)
    return root.upper.logits(x)[0]


def test_a_rule_is_learnt_and_the_report_is_true(home: Manager, rule: dict[str, Any]) -> None:
    metrics, version = rule["metrics"], live(home, "rule")
    assert metrics["perplexity"] < metrics["root_perplexity"] / 50
    assert metrics["exact_match"] >= 0.75
    assert metrics["rouge_l"] >= metrics["exact_match"]
    assert (metrics["rows"], metrics["answers"], metrics["train_rows"]) == (12, 12, 48)
    assert (version.task, version.labels, version.lexical, version.ramps) == ("generation", (), False, ())
    assert (version.module, version.max_length) == (ModuleSpec(rank=16, sites=GATED), 64)
    assert rule["improving"] is None
    root, artefact = root_of(home), artefact_of(home, version)
    assert {name.partition(".")[0] for name in artefact.joined()} == {"module"}
    module = module_from({name: value.float() for name, value in artefact.module.items()})
    _, dev = hold_out(read_labelled_rows(rows(), "generation"))
    with home.plots.reader(version.plot_version) as reader:
        rows_of = rows_from_plot(reader, root.upper.first)
        sums = {None: 0.0, module: 0.0}
        right = tokens = 0
        for row in dev:
            one = written(row, root.tokenizer)
            tokens += len(one.answer)
            for change in sums:
                scores = recomputed(root, rows_of, change, one.ids[:-1])[one.begin - 1 :]
                sums[change] += float(F.cross_entropy(scores, torch.tensor(one.answer), reduction="sum"))
            right += greedy(root, rows_of, module, one.prompt) == answer_of(row).strip()
    for change, name in ((None, "root_perplexity"), (module, "perplexity")):
        assert metrics[name] == pytest.approx(torch.tensor(sums[change] / tokens).exp().item(), rel=1e-3)
    assert metrics["exact_match"] == round(right / 12, 4)


def answer_of(row: Row) -> str:
    assert isinstance(row.label, Completion)
    return row.label.text


def greedy(root: GenerativeRoot, rows_of: RowsOf, module: TenantModule, prompt: list[int]) -> str:
    """The answer, with everything computed anew for each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + MOST_TOKENS:
        ids.append(int(recomputed(root, rows_of, module, ids)[-1].argmax()))
        if ids[-1] in root.tokenizer.ends:
            break
    return root.tokenizer.decode(ids[len(prompt) :]).strip()


@pytest.mark.parametrize("bf16", [False, True])
def test_losses_are_those_of_the_completions_alone(home: Manager, bf16: bool) -> None:
    root = root_of(home)
    texts = [written(row, root.tokenizer) for row in read_labelled_rows(rows(40), "generation")]
    torch.manual_seed(1)
    module = new_module(ModuleSpec(rank=4, sites=GATED), root.info.shape, len(root.upper.layers))
    with torch.no_grad():
        for p in module.parameters():
            p.normal_(std=0.1)
    plan = TrainPlan("generation", 0, lr=1e-3, epochs=1, batch=8, seed=0, dropout=0.0, bf16=bf16)
    with home.plots.reader(home.plots.refs()["tiny/news"].id) as reader:
        rows_of = rows_from_plot(reader, root.upper.first)
        trainer = WritingTrainer(root.upper, module, rows_of, plan, texts)
        found, roughly = trainer.losses(texts, exact=True), trainer.losses(texts)
        batch = trainer._loss_of([3, 5, 8])
        wanted = []
        for one in texts:
            # Whatever the prompt's tokens should have been: they are ignored.
            targets = torch.tensor([-100] * (one.begin - 1) + one.answer)
            scores = recomputed(root, rows_of, module, one.ids[:-1])
            wanted.append(F.cross_entropy(scores, targets, reduction="sum"))
    torch.testing.assert_close(found[:, 0], torch.stack(wanted), rtol=1e-5, atol=1e-4)
    assert found[:, 1].tolist() == [len(one.answer) for one in texts]
    torch.testing.assert_close(roughly, found, rtol=0.05, atol=0.05)
    some = found[[3, 5, 8]].sum(0)
    torch.testing.assert_close(batch.detach(), some[0] / some[1], rtol=0.03 if bf16 else 1e-5, atol=1e-5)
    batch.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())
    assert all(p.grad is None for p in root.upper.parameters())


def test_an_update_goes_on_from_the_live_version_and_is_held_back_if_worse(home: Manager) -> None:
    made(home, create(home, "going", options={**QUICK, "epochs": 8}))  # far from as good as it can be
    wrong = dict(zip(RULE, [*RULE.values()][::-1], strict=True))
    dev = rows(30, seed=8)
    job = home.update_model("acme.going", data=rows(60, 3, wrong), dev=dev, options={"lr": 0.01})
    result = made(home, job)
    told = result["metrics"]["live"]
    assert not result["published"]
    assert (told["metric"], told["version"], told["rows"]) == ("perplexity", 1, 29), "one was seen"
    assert told["score"] > told["live_score"] + told["tolerance"]
    assert "it has a perplexity of" in result["reason"]
    assert "worse by more than" in result["reason"]
    few = {**QUICK, "epochs": 3}
    result = made(home, home.update_model("acme.going", data=rows(60, 4), dev=dev, options=few))
    told = result["metrics"]["live"]
    assert result["published"]
    assert told["score"] < told["live_score"]
    anew = made(home, create(home, "anew", rows(60, 4), dev=dev, options=few))
    assert result["metrics"]["perplexity"] < 0.75 * anew["metrics"]["perplexity"], "it did not start anew"
    version = live(home, "going")
    assert (version.version, version.module, version.max_length) == (3, ModuleSpec(**ALL), 64)
    assert home.rollback_model("acme.going", 1).current == 1


def test_a_model_starts_from_another_and_is_deleted(home: Manager, rule: dict[str, Any]) -> None:
    result = made(home, create(home, "next", rows(20, 5), options={"start": "acme.rule", "epochs": 1}))
    assert result["metrics"]["perplexity"] < 10
    assert live(home, "next").module == live(home, "rule").module
    with pytest.raises(InvalidInput, match="another module"):
        create(home, "other", options={"start": "acme.rule", "module": {"rank": 4}})
    home.delete_model("acme.next")
    with pytest.raises(NotFound):
        live(home, "next")


def test_the_default_is_small_and_a_stopped_run_goes_on(home: Manager) -> None:
    job = create(home, "whole", options={"epochs": 3, "rest": "int8"})
    whole = made(home, job)
    assert live(home, "whole").module == WRITING_MODULE
    assert home.registry.job(job.job).spec["options"]["max_length"] == 512
    job, attempts, result = create(home, "parts", options={"epochs": 3, "rest": "int8"}), 0, None
    while result is None:
        result = attempt(home, job, fine_tune.run, calls=4 if attempts < 4 else 10**6)
        attempts += 1
    assert attempts == 5
    same = {"perplexity", "root_perplexity", "rouge_l", "epoch"}
    assert {n: whole["metrics"][n] for n in same} == {n: result["metrics"][n] for n in same}
    assert live(home, "whole").artefact == live(home, "parts").artefact


def test_chats_are_learnt_in_the_models_template(home: Manager) -> None:
    def chat(i: int, user: str) -> dict[str, Any]:
        said = [("system", "be brief"), ("user", user), ("assistant", f"good {i % 3}")]
        return {"messages": [{"role": role, "content": content} for role, content in said]}

    result = made(home, create(home, "chat", as_lines(*(chat(i, f"a {i}") for i in range(20)))))
    assert result["metrics"]["chats"] == result["metrics"]["train_rows"] == 16
    root = root_of(home)
    row = read_labelled_rows(as_lines(*(chat(i, "a") for i in range(4))), "generation")[1]
    one = written(row, root.tokenizer)
    assert isinstance(row.label, Completion)
    said = [{"role": role, "content": content} for role, content in row.label.chat]
    (prompt,) = root.tokenizer.encode([root.tokenizer.chat(said)], 64, specials=True)
    assert one.prompt == prompt.ids
    assert one.answer[-1] == root.tokenizer.ends[0]
    assert root.tokenizer.decode(one.answer) == "good 1"
    bad = as_lines(*(chat(i, "a <|end|>" if i == 7 else f"a {i}") for i in range(20)))
    with pytest.raises(
        InvalidData, match=r"line 8: messages\[1\]\.content holds .*of a special token"
    ) as told:
        made(home, create(home, "marked", bad))
    assert told.value.details == {"field": "data", "line": 8}


@pytest.mark.parametrize("listed", [False, True])
def test_chats_that_the_template_refuses_are_all_named(home: Manager, listed: bool) -> None:
    def chat(i: int) -> dict[str, Any]:
        user = {"role": "user", "content": f"<|end|> {i}" if i in (3, 9) else f"a {i}"}
        return {"messages": [user, {"role": "assistant", "content": "good"}]}

    some = [chat(i) for i in range(12)]
    given = json.dumps(some).encode() if listed else as_lines(*some)
    with pytest.raises(InvalidData) as told:
        made(home, create(home, f"refused-{int(listed)}", as_lines(*map(chat, range(20, 30))), dev=given))
    first, second = ("item 4", "item 10") if listed else ("line 4", "line 10")
    assert told.value.message.startswith("2 chats of dev cannot be written by the root's template: ")
    assert f"{first}: messages[0].content" in told.value.message
    assert f"({second}, too)" in told.value.message
    assert told.value.message.endswith("Mend these rows, or take them out")


@pytest.mark.parametrize("without", [1, 8])
def test_chats_without_an_answer_are_told_of_by_line(home: Manager, without: int) -> None:
    asked = {"role": "user", "content": "why"}
    good = {"messages": [asked, {"role": "assistant", "content": "so"}]}
    data = as_lines(*[good] * (8 - without), *[{"messages": [asked]}] * without)
    with pytest.raises(InvalidData) as told:
        create(home, "unanswered", data)
    line = 9 - without
    assert told.value.details == {"field": "data", "line": line}
    assert f"line {line}: the last of `messages` is not the assistant's: add the answer" in told.value.message
    assert "label_column" not in told.value.message, "no column is missing"
    alone = as_lines(*[good] * 7, {"messages": good["messages"][1:]})
    with pytest.raises(
        InvalidData, match="line 8: `messages` has the assistant's answer alone: give the user"
    ):
        create(home, "unanswered", alone)


def test_long_rows_are_left_out_and_counted(home: Manager) -> None:
    long = {"prompt": "good film " * 60, "completion": " bad"}
    some = rows(20) + b"\n" + as_lines(long, long)
    metrics = made(home, create(home, "long", some, dev=rows(8, 1), options={"epochs": 1}))["metrics"]
    assert (metrics["too_long_rows"], metrics["train_rows"]) == (2, 20)
    assert (metrics["too_long_held_out_rows"], metrics["rows"]) == (0, 8)
    (said,) = (said for said in metrics["warnings"] if "64 tokens" in said)
    assert said.startswith("left out: 2 of 22 training rows. Their prompt")
    dev = rows(8, 1) + b"\n" + as_lines(*[long] * 300)
    metrics = made(home, create(home, "long-dev", some, dev=dev, options={"epochs": 1}))["metrics"]
    assert (metrics["too_long_rows"], metrics["too_long_held_out_rows"], metrics["rows"]) == (2, 300, 8)
    assert any(
        said.startswith("left out: 2 of 22 training rows and 300 of 308 held-out rows.")
        for said in metrics["warnings"]
    )
    assert any("rest on 8 held-out rows" in said for said in metrics["warnings"]), "those that are scored"
    with pytest.raises(InvalidData, match="every row of data has more than 9 tokens"):
        made(home, create(home, "longer", rows(20, 0, {"film": " good bad plot"}), options={"max_length": 9}))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lexical": True}, "options.lexical"),
        ({"lexical": False}, "options.lexical"),
        ({"transitions": True}, "options.transitions"),
        ({"ramps": True}, "options.ramps"),
        ({"class_weights": "balanced"}, "options.class_weights"),
        ({"long_texts": "windows"}, "options.long_texts"),
        ({"variants": 3}, "options.variants"),
        ({"improve": True}, "options.improve"),
        ({"labels": ["a", "b"]}, "options.labels"),
        ({"module": {"kind": "parallel"}}, "options.module.kind"),
        ({"module": {"kind": "lora+ln"}}, "options.module.kind"),
        ({"module": {"sites": "attn"}}, "options.module.sites"),
    ],
)
def test_options_of_other_tasks_are_refused(
    home: Manager, rule: dict[str, Any], options: dict[str, Any], field: str
) -> None:
    for call in (
        lambda: create(home, "refused", options=options),
        lambda: home.update_model("acme.rule", data=rows(), options=options),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.details["field"].startswith(field.rpartition(".")[0])
        assert field.rpartition(".")[2] in caught.value.message


@pytest.mark.parametrize(
    ("module", "is_"),
    [
        (None, {"rank": 2, "sites": ("q", "v", "o", "fi", "fo")}),
        ({}, {"rank": 2, "sites": ("q", "v", "o", "fi", "fo")}),
        ({"kind": "lora"}, {"rank": 2, "sites": ("q", "v", "o", "fi", "fo")}),
        ({"rank": 4}, {"rank": 4, "sites": ("q", "v", "o", "fi", "fo")}),
        ({"size": "small"}, {"rank": 3, "sites": ("q", "v", "o", "fi", "fo")}),
        ({"sites": "gate,q"}, {"rank": 22, "sites": ("q", "gate")}),
        ({"sites": "q,k,v,o,fi,fo", "rank": 2}, {"rank": 2, "sites": None}),
        ({"sites": ",".join(GATED), "rank": 2}, {"rank": 2, "sites": GATED}),
    ],
)
def test_a_module_has_the_defaults_of_language_models(
    home: Manager, module: dict[str, Any] | None, is_: dict[str, Any]
) -> None:
    job = create(home, "module", options={"module": module})
    assert FineTuneSpec.of(home.registry.job(job.job)).options.module == ModuleSpec(**is_)
    home.cancel_job(job.job)


def test_calls_of_other_tasks_are_refused(home: Manager, rule: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="generation model has no ramps"):
        home.train_ramps("acme.rule", data=rows())
    with pytest.raises(InvalidInput, match="no profile of token adaptation"):
        home.tokens.profile("acme.rule", {"data": rows()})
    with pytest.raises(InvalidInput, match="is a language model, which has neither early exits"):
        home.set_objective("acme.rule", lambda old: {"agreement": 0.99})
    with pytest.raises(InvalidInput, match=r"known_share: acme\.rule is a language model"):
        home.set_objective("acme.rule", lambda old: {}, {"known_share": 0.9})
    adapter = {"adapter_config": b"{}", "adapter": b"", "data": rows()}
    with pytest.raises(InvalidInput, match="is not a safetensors file"):
        home.import_module("acme.y", domain="tiny/news", task="generation", files=adapter)
    with pytest.raises(InvalidInput, match="leave unlabelled out"):
        create(home, "refused", unlabelled=rows())
    with pytest.raises(InvalidInput, match=r"root tiny is a language model.* --task generation"):
        home.create_model("acme.refused", domain="tiny/news", task="embedding")
    spec = FineTuneSpec(model="acme.x", domain="tiny", task="generation", mode="create")
    ctx = JobContext(home.registry.job(live(home, "rule").job), home.settings, home.registry)
    assert not may_improve(ctx, spec)
    ctx.close()


def test_an_encoder_cannot_write_and_has_no_gate(tiny_source: Path, tmp_path: Path) -> None:
    for manager in tiny_manager(tiny_source, tmp_path / "data"):
        manager.create_tenant("acme")
        with pytest.raises(InvalidInput, match="root tiny is an encoder, which cannot write") as caught:
            manager.create_model("acme.x", domain="tiny", task="generation", data=rows())
        assert caught.value.details["field"] == "task"
        labelled = as_lines(*({"text": f"good {i}", "label": "ab"[i % 2]} for i in range(20)))
        with pytest.raises(InvalidInput, match="only language models have the site gate"):
            manager.create_model(
                "acme.x",
                domain="tiny",
                task="classification",
                data=labelled,
                options={"module": {"sites": "q,gate"}},
            )


def test_versions_are_compared_on_the_same_rows() -> None:
    def losses(*each: float, tokens: float = 4.0) -> list[torch.Tensor]:
        return [torch.tensor([loss * tokens, tokens]) for loss in each]

    old = losses(1.0, 1.2, 0.8, 1.0)
    same, better = compare_losses(old, old), compare_losses(old, losses(0.5, 0.7, 0.3, 0.5))
    assert (same.worse, better.worse, better.rows) == (None, None, 4)
    assert better.scores["live_score"] == pytest.approx(2.7183, abs=1e-4)
    assert better.scores["score"] == pytest.approx(1.6487, abs=1e-4)
    assert compare_losses(old, losses(1.1, 1.3, 0.9, 1.1)).worse is not None
    assert compare_losses(old, losses(2.0, 0.5, 1.6, 0.2)).worse is None, "within one standard error"
    unread = [*losses(3.0), *losses(1.2, 0.8), torch.zeros(2)]
    assert compare_losses(old, unread).rows == 3
    assert compare_losses([torch.zeros(2)], losses(1.0)).rows == 0


def test_rouge_l() -> None:
    assert rouge_l("police killed the gunman", "police kill the gunman") == 0.75
    assert rouge_l("police killed the gunman", "the gunman kill police") == 0.5
    assert rouge_l("A b, c", "a B C!") == 1.0
    assert rouge_l("a", "") == 0.0
    assert rouge_l("…", "!") == 1.0
    assert rouge_l("a b c d", "a x c y z d") == pytest.approx(2 * 3 / 10)
    draw = random.Random(0)
    for _ in range(200):
        a, b = (draw.choices("xyz", k=draw.randrange(1, 9)) for _ in range(2))
        assert rouge_l(" ".join(a), " ".join(b)) == pytest.approx(2 * longest(a, b) / (len(a) + len(b)))
    assert score_written([" a b", "c"], ["a b\n", "d"]) == {"exact_match": 0.5, "rouge_l": 0.5, "answers": 2}
    assert perplexity(torch.zeros(0, 2)) == 1.0


def longest(a: Sequence[str], b: Sequence[str]) -> int:
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest(a[1:], b[1:])
    return max(longest(a[1:], b), longest(a, b[1:]))


def test_the_command_line_trains_and_reports(
    home: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, at = tmp_path / "rows.jsonl", ("--data", home.settings.data)
    file.write_bytes(rows(24))
    assert "generation" in hmi(capsys, "check", file)
    asked = ("--domain", "tiny/news", "--task", "generation", "--option", "epochs=1")
    said = hmi(capsys, "model", "create", "acme.cli", file, *asked, *at)
    assert "perplexity" in said
    shown = hmi(capsys, "model", "report", "acme.cli", *at)
    for name in ("perplexity", "root_perplexity", "exact_match", "rouge_l"):
        assert name in shown
