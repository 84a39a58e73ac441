"""No table of answers to requests with an idempotency key: an upload's id is a hash of its content."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Remove the table."""
    op.drop_index("ix_answers_created_s", "answers")
    op.drop_table("answers")


def downgrade() -> None:
    """Create the table, empty."""
    op.create_table(
        "answers",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("request_sha256", sa.String(), nullable=False),
        sa.Column("status", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_answers_created_s", "answers", ["created_s"], unique=False)
