"""Who gets which resource: the scheduler, fair queues, memory for decoding, eviction."""
