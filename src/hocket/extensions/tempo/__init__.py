"""Tempo at work: sends and receives its messages. The rules are in `extensions.tempo.beats`."""
