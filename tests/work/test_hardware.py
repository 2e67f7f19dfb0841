"""What a machine has, as its node tells others."""

from pathlib import Path

from hocket.work import presence as hardware


def test_this_machine_has_processors_and_memory() -> None:
    found = hardware.this_machine()
    assert found.cpus >= 1 and found.memory_bytes > 2**20


def test_the_gpus_that_the_driver_lists_are_named(tmp_path: Path) -> None:
    for number, text in enumerate(("Model: \t\t NVIDIA H200\nIRQ: 7\n", "IRQ: 8\n", "Model: NVIDIA L4\n")):
        place = tmp_path / f"0000:0{number}:00.0"
        place.mkdir()
        (place / "information").write_text(text)
    assert hardware._gpus(tmp_path) == ("NVIDIA H200", "unknown", "NVIDIA L4")
    assert hardware._gpus(tmp_path / "none") == ()
