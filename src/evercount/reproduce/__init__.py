"""The paper's figures and tables, computed again beside the paper's numbers: `evercount reproduce`."""
