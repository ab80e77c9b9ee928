"""Scheduling of shared resources: the scheduler, fair executors, decode memory and eviction."""
