"""Metrics, health and readiness of a process, for Prometheus and for probes."""
