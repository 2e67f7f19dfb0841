"""The version of this program, which proofs of execution name. It must be known without installed package metadata."""

__version__ = "0.1.0"
