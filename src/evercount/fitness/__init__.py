"""How fit event files are to be published: reports for the operator alone."""
