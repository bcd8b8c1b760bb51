"""The paper's figures and tables, computed again next to the paper's numbers:
`evercount reproduce`."""
