"""Benchmarks of Chameleon Lab: each prints a table and writes JSON; peers are measured in the same run."""
