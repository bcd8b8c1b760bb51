"""What an operator declares about a stream: query, budget, schedule, columns, late rule."""
