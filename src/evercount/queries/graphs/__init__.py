"""The graph queries; proofs of their sensitivities: ``graphs.proof.md``."""
