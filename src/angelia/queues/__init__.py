"""Queues: ordered partitions that consumer groups read by leases, for clients of Queen MQ and our own."""
