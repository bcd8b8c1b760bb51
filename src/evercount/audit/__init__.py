"""Attacks on what evercount claims: declared sensitivities here, joint releases later."""
