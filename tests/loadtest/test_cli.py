"""Output files of a run, and command lines that are refused before it starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from loadtest import cli, plots, servers
from loadtest.figures import figures
from loadtest.plan import Plan, Protocol
from loadtest.plots import draw_plots
from loadtest.records import TurnRecord, read_records
from loadtest.report import Row, RunRecords, prepare_files, read_json, write_report
from loadtest.run import LoadTestError, carry_out, port_of
from service.cli import app
from service.settings import Settings

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PLAN = Plan(url="ws://127.0.0.1:1/", duration_s=20, warmup_s=10, rate_per_s=1)


def run(label: str, ttfa_s: float = 0.1) -> RunRecords:
    """A turn every two seconds. Turns of the warm-up are heard a second later."""
    records = [
        TurnRecord(
            index, 0, 9, at, at, at, "complete", opened_s=at, silence=0, ended_s=at + 2,
            arrivals=[(at + ttfa_s + (at < 10), 24_000), (at + ttfa_s + 1.5, 24_000)],
        )
        for index, at in enumerate(range(0, 24, 2))
    ]  # fmt: skip
    return Row(label, PLAN, figures(PLAN, records, slo_ttfa_ms=500)), records


def test_write_report_creates_folders_of_report_and_raw_file(tmp_path, capsys) -> None:
    out = tmp_path / "new" / "out"
    write_report("test", [run("a")], None, out, out / "deeper" / "raw.jsonl")
    assert json.loads((out / "report.json").read_text())["rows"][0]["label"] == "a"
    assert len(read_records(out / "deeper" / "raw.jsonl")) == 12


def test_write_report_keeps_report_if_raw_file_fails(tmp_path, capsys) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        prepare_files(None, tmp_path)
    with pytest.raises(OSError, match="too long"):
        write_report("test", [run("a")], None, tmp_path, tmp_path / ("x" * 300))
    assert (tmp_path / "report.md").read_text().startswith("test, ")


async def test_run_writes_files_if_reader_of_tables_has_gone(tmp_path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest", "run", "--url", "ws://127.0.0.1:1/"),
        *("--duration", "1", "--warmup", "0", "--rate", "9/s", "--out", tmp_path),
        *("--raw", tmp_path / "raw.jsonl"),
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(writing)
    _, told = await started.communicate()
    assert (started.returncode, "roken" in told.decode()) == (1, False)
    assert read_json(tmp_path / "report.json").rows[0].figures.outcomes.keys() == {"failed"}
    assert read_records(tmp_path / "raw.jsonl")


def test_run_fails_after_its_report_if_every_turn_failed(tmp_path, capsys) -> None:
    command = ["run", "--url", "ws://127.0.0.1:1/", "--duration", "1", "--warmup", "0"]
    with pytest.raises(SystemExit, match="every turn failed"):
        cli.main([*command, "--rate", "9/s", "--out", str(tmp_path)])
    assert read_json(tmp_path / "report.json").rows[0].figures.outcomes.keys() == {"failed"}
    assert capsys.readouterr().out == (tmp_path / "report.md").read_text()


def _judged(*outcomes: dict[str, int], stopped: bool = False) -> None:
    made = figures(PLAN, [], slo_ttfa_ms=500)
    replace = msgspec.structs.replace
    cli._judge(
        [
            Row("a", PLAN, replace(made, outcomes=each, measured_turns=sum(each.values())),
                stopped=stopped)
            for each in outcomes
        ]
    )  # fmt: skip


def test_command_fails_if_it_measured_nothing_or_most_turns_failed() -> None:
    for outcomes, told in (
        ([{}, {}], "nothing was measured"),
        ([{"failed": 3}], "every turn failed"),
        ([{"failed": 3, "complete": 2}], "most turns failed"),
        ([{"failed": 3, "complete": 1}, {"failed": 3}], "most turns failed"),
    ):
        with pytest.raises(LoadTestError, match=told):
            _judged(*outcomes)


def test_command_succeeds_if_it_measured_what_a_service_does() -> None:
    _judged({"failed": 3, "complete": 3})
    _judged({"refused": 9})
    _judged({}, {"complete": 1})
    _judged({"complete": 3}, {"failed": 3})  # a load that breaks the service is a result
    _judged({}, stopped=True)


def test_gateway_fails_after_its_report_if_it_measured_nothing(
    monkeypatch, tmp_path, capsys
) -> None:
    async def measured(*args: Any, **options: Any) -> list[Row]:
        return [Row("gateway 2", PLAN, figures(PLAN, [], slo_ttfa_ms=500))]

    monkeypatch.setattr(cli, "gateway_against_bare", measured)
    with pytest.raises(SystemExit, match="nothing was measured"):
        cli.main(["gateway", "--duration", "8", "--streams", "2", "--out", str(tmp_path)])
    assert capsys.readouterr().out == (tmp_path / "report.md").read_text()


def test_write_report_prints_tables_if_file_fails(tmp_path, capsys) -> None:
    with pytest.raises(OSError, match="too long"):
        write_report("test", [run("a")], None, None, tmp_path / ("x" * 300))
    assert capsys.readouterr().out.startswith("test, ")


def test_write_report_labels_raw_records(tmp_path, capsys) -> None:
    raw = tmp_path / "raw.jsonl"
    write_report("test", [run("31 %"), run("100 %")], 16, None, raw)
    assert [record.run for record in read_records(raw)] == ["31 %"] * 12 + ["100 %"] * 12


def _with_loads(runs: list[RunRecords]) -> list[RunRecords]:
    loads = range(1, len(runs) + 1)
    return [
        (msgspec.structs.replace(row, load=load), records)
        for load, (row, records) in zip(loads, runs, strict=True)
    ]


def test_draw_plots_draws_sweep_that_heard_nothing(tmp_path) -> None:
    silent = figures(PLAN, [], slo_ttfa_ms=500)
    draw_plots(
        _with_loads([(Row("10 %", PLAN, silent), []), (Row("100 %", PLAN, silent), [])]), tmp_path
    )
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {"ttfa_cdf.png", "ttfa_load.png", "goodput.png"}


def test_draw_plots_leaves_no_plot_of_earlier_runs(tmp_path) -> None:
    draw_plots(_with_loads([run("31 %"), run("100 %")]), tmp_path)
    (tmp_path / "mine.png").touch()
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {"ttfa_load.png", "goodput.png", "waterfall.png"} < drawn
    row, _ = run("a")
    draw_plots([(row, [])], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.png", "ttfa_cdf.png"}


def test_draw_plots_shows_only_measured_turns(tmp_path, monkeypatch) -> None:
    drawn = {}
    monkeypatch.setattr(plots, "_save", lambda axes, path: drawn.update({path.name: axes}) or path)
    row, records = run("a")
    draw_plots([(row, records)], tmp_path)
    (line,) = drawn["ttfa_cdf.png"].get_lines()
    assert len(line.get_xdata()) == row.figures.ttfa.n == 5
    assert max(line.get_xdata()) == pytest.approx(row.figures.ttfa.max)
    received = drawn["waterfall.png"].get_lines()[0].get_xdata()
    assert received[1] == pytest.approx(0.1)  # a turn of the warm-up would have 1.1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--plots"], "--plots draws into a folder"),
        (["sweep", "--plots"], "--plots draws into a folder"),
        (["run", "--raw", "{tmp}"], "is a folder"),
        (["run", "--raw", "{tmp}/file/raw.jsonl"], "exists"),
        (["run", "--out", "{tmp}/file"], "exists"),
        (["gateway", "--out", "{tmp}/out"], "report.md"),
        (["run", "--duration", "5", "--warmup", "5"], "nothing would be measured"),
        (["gateway", "--duration", "5"], "nothing would be measured"),
        (["gateway", "--streams", "0"], "at least 1"),
        (["gateway", "--streams", "100,b"], "numbers of streams are whole numbers"),
        (["run", "--url", "http://127.0.0.1:9/"], "--protocol openai speaks HTTP"),
        (["run", "--url", "http://127.0.0.1:9/", "--remote"], "--protocol openai speaks HTTP"),
        (["sweep", "--url", "http://127.0.0.1:9/"], "--protocol openai speaks HTTP"),
        (["run", "--url", "ws://192.0.2.7:9/"], "another machine"),
    ],
)
def test_cli_refuses_bad_arguments_before_run(
    tmp_path, monkeypatch, capsys, arguments, told
) -> None:
    monkeypatch.setattr(servers, "started", lambda command: pytest.fail("a server was started"))
    (tmp_path / "file").write_text("")
    (tmp_path / "out" / "report.md").mkdir(parents=True)
    filled = [each.format(tmp=tmp_path) for each in arguments]
    with pytest.raises(SystemExit, match=told) as ended:
        cli.main(filled)
    assert isinstance(ended.value.code, str), "a text, which the interpreter prints, and 1"
    assert capsys.readouterr().err == "", "no run was announced"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stroll"],
        ["run", "--duration", "0"],
        ["sweep", "--duration", "3601"],
        ["sweep", "--steps", "51"],
        ["sweep", "--capacity", "-4"],
        ["sweep", "--capacity", "nan"],
        ["run", "--think-s", "inf"],
        ["run", "--slo-ttfa-ms", "inf"],
        ["gateway", "--slo-ttfa-ms", "nan"],
        ["run", "--pid", "-1"],
        ["run", "--processes", "many"],
        ["run", "--protocol", "gopher"],
        ["compare", "a"],
    ],
)
def test_cli_shows_usage_for_wrong_command_line(capsys, monkeypatch, arguments) -> None:
    monkeypatch.setattr(cli, "carry_out", lambda work: pytest.fail("something was measured"))
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: loadtest" in capsys.readouterr().err


def test_cli_help_shows_usage(capsys) -> None:
    for command in ("run", "sweep", "gateway", "compare"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        assert "usage: loadtest" in capsys.readouterr().out


def test_port_of_gives_default_port_and_refuses_wrong_url() -> None:
    assert port_of("wss://h/", "native") == port_of("https://h/", "openai") == 443
    wrong: tuple[tuple[str, Protocol], ...] = (
        ("http://h:8000/", "native"),
        ("ftp://h/", "openai"),
        ("ws://h:x", "native"),
    )
    for url, protocol in wrong:
        with pytest.raises(LoadTestError, match="not an address for this protocol"):
            port_of(url, protocol)


@pytest.mark.parametrize(
    "url", ["ws://h:1/v1/tts/stream", "http://h:1", "http://h:1/", "http://h:1/v1/audio/speech"]
)
def test_capacity_is_requested_from_metrics_endpoint(monkeypatch, url: str) -> None:
    asked = []

    def refuse(request: urllib.request.Request, timeout: float) -> None:
        asked.append(request.full_url)
        raise OSError

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert servers.capacity(url) is None
    assert asked == ["http://h:1/metrics"]


def test_started_service_listens_on_loopback_despite_environment(monkeypatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("service.server.serve_until_stopped", lambda one, _: served.append(one))
    monkeypatch.setenv("TALKWIRE_HOST", "0.0.0.0")
    monkeypatch.setenv("TALKWIRE_PORT", "8000")
    done = CliRunner().invoke(app, servers.real().args[1:])
    assert done.exit_code == 0, done.output
    assert [(one.host, one.port) for one in served] == [("127.0.0.1", 0)]


async def test_started_service_has_no_tls_despite_environment(monkeypatch) -> None:
    monkeypatch.setenv("TALKWIRE_TLS_CERTIFICATE", "certificate.pem")
    monkeypatch.setenv("talkwire_tls_key", "key.pem")
    told = "import os, sys; sys.exit(f'{[name for name in os.environ if \"tls\" in name.lower()]}')"
    with pytest.raises(LoadTestError, match=r"did not start:\n\[\]\n"):
        async with servers.started(servers.Command([sys.executable, "-c", told], {})):
            pass


def test_sweep_tells_that_no_server_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"ws://127.0.0.1:{port}/v1/tts/stream"
    with pytest.raises(SystemExit, match=f"^loadtest: no server answers at {url}: .*refused"):
        cli.main(["sweep", "--url", url])


def test_capacity_is_unknown_if_server_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.recv(1 << 16)

        greeting = threading.Thread(target=greet)
        greeting.start()
        assert servers.capacity(f"ws://127.0.0.1:{listener.getsockname()[1]}/") is None
        greeting.join()


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_carry_out_raises_keyboard_interrupt_on_sigterm(ctrl_c: Any) -> None:
    """Also in a shell's background job, where Ctrl-C is ignored."""
    ended = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    before, mine = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt):
            carry_out(work())
    finally:
        signal.signal(signal.SIGINT, mine)
    assert ended == [True]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("name", ["loadtest_sweep", "loadtest_gateway"])
def test_read_json_reads_older_reports(tmp_path, name: str) -> None:
    """Fields that the plan of a committed result did not have yet get their defaults."""
    committed, older = RESULTS / f"{name}.json", tmp_path / "older.json"
    data = json.loads(committed.read_text())
    for row in data["rows"]:
        row["plan"] = {key: row["plan"][key] for key in ("url", "duration_s", "warmup_s")}
    older.write_text(json.dumps(data))
    now, before = read_json(committed).rows, read_json(older).rows
    assert [row.figures for row in before] == [row.figures for row in now]
    for read, row in zip(before, data["rows"], strict=True):
        assert (read.label, read.plan) == (row["label"], Plan(**row["plan"]))
        assert read.figures.measured_turns == row["figures"]["measured_turns"]
        assert read.figures.ttfa.p95 is not None
        assert read.figures.ttfa.p95.value == row["figures"]["ttfa"]["p95"]["value"]
