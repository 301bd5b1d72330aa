"""Tests of the CPU figures of the recovery benchmark."""

from __future__ import annotations

import os

from bench.recovery.cpu_sampler import CpuSeconds, busiest_minute, process_of


def test_busiest_minute_is_the_highest_use_within_sixty_seconds() -> None:
    quiet_then_busy = [(0.0, 0.0), (60.0, 0.1), (90.0, 0.7), (120.0, 1.3), (200.0, 1.4)]

    assert round(busiest_minute(quiet_then_busy), 2) == 2.0


def test_measurement_shorter_than_a_minute_counts_as_a_minute() -> None:
    assert (busiest_minute([(0.0, 0.0), (5.0, 0.6)]), busiest_minute([])) == (1.0, 0.0)


def test_cpu_seconds_separate_the_children_for_any_program_name() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"12 (a (strange) name) S {' '.join(['7'] * 10)} {ticks} {ticks} {3 * ticks} {ticks} 20 0"

    assert CpuSeconds.of(stat) == CpuSeconds(own=2.0, children=4.0)
    assert CpuSeconds.of(stat).since(CpuSeconds(0.5, 5.0)) == CpuSeconds(1.5, 0.0)


def test_processes_of_two_boots_with_the_same_pid_differ() -> None:
    first, second = (f"103 (daemon) S {' '.join(['7'] * 18)} {start} 0" for start in (500, 700))

    assert process_of(first) != process_of(second)
    assert process_of(first) == process_of(first)
