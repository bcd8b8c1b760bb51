"""A log (NATS JetStream, Kafka) as a source of events: every message counts once, over any
crash."""
