"""Tempo at work: sends and receives its messages. The rules are in `kernel.beats`."""
