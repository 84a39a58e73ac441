"""Remove the workers on other machines that were seen lately."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Remove the table."""
    op.drop_table("seen_workers")


def downgrade() -> None:
    """Create the table, empty."""
    op.create_table(
        "seen_workers",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("torch", sa.String(), nullable=True),
        sa.Column("unit", sa.String(), nullable=True),
        sa.Column("seen_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
