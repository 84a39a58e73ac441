"""Tables as of commit f7028ce, the oldest schema that a server migrates; a new store begins with the newest schema."""

revision = "0008"
down_revision = None
