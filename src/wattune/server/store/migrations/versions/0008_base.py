"""Tables as of commit f7028ce, the oldest schema that a server migrates."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON(none_as_null=True)


def _text(*names: str, nullable: bool = False) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(), nullable=nullable) for name in names]


def _key(name: str = "id") -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String(), primary_key=True)]


def _number(*names: str, nullable: bool = False) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Double(), nullable=nullable) for name in names]


def _integer(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, INTEGER, nullable=nullable) for name in names]


def _json(name: str, *, nullable: bool = False) -> list[sa.Column[object]]:
    return [sa.Column(name, JSON, nullable=nullable)]


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "devices",
        *_key("name"),
        *_json("status"),
        *_json("plan", nullable=True),
        *_text("profile_id", "job_id", nullable=True),
        *_number("seen_s"),
    )
    op.create_table("files", *_key("sha256"), *_text("kind"), *_integer("bytes"), *_number("created_s"))
    op.create_table(
        "jobs",
        *_key(),
        *_text("model_name"),
        *_json("model"),
        *_json("request"),
        *_text("state"),
        *_text("reason", nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=False),
        *_json("curve", nullable=True),
        *_number("created_s"),
        *_number("finished_s", nullable=True),
        *_text("token", nullable=True),
        sa.Column("is_shared", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table("models", *_key("name"), *_json("record"), *_text("digest"), *_number("created_s", "updated_s"))
    op.create_table(
        "profiles",
        *_key(),
        *_text("key_sha256", nullable=True),
        *_text("board", "workload", "algorithm"),
        *_text("kind", nullable=True),
        *_text("publisher"),
        *_json("record"),
        *_number("created_s"),
    )
    op.create_table("sessions", *_key(), *_text("token"), *_number("until_s"))
    op.create_table(
        "tokens",
        *_key(),
        *_text("name", "scope", "secret_sha256"),
        *_number("created_s"),
        *_number("expires_s", "revoked_s", "used_s", nullable=True),
        *_text("device", nullable=True),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "trainings",
        *_key(),
        *_text("device"),
        *_text("model_name", nullable=True),
        *_number("created_s"),
        *_text("workload", "kind", nullable=True),
        *_integer("batch_size", "micro_batch_size", nullable=True),
        *_number("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz", "cpu_cores", nullable=True),
        *_number("power_limit_w", "cap_w", nullable=True),
        *_text("ended", nullable=True),
        *_integer("samples", nullable=True),
        *_number("time_s", "energy_j", "power_mean_w", "power_peak_w", "above_cap_s", nullable=True),
        *_json("record"),
    )
    op.create_table(
        "run_notes",
        *_key("training_id"),
        *_text("tags", "note"),
        sa.ForeignKeyConstraint(["training_id"], ["trainings.id"], ondelete="CASCADE"),
    )
    op.create_table(
        "seen_workers",
        *_key("key"),
        *_text("name"),
        *_text("token", nullable=True),
        *_text("device"),
        *_text("torch", "unit", nullable=True),
        *_number("seen_s"),
    )
    op.create_table(
        "units",
        sa.Column("id", INTEGER, primary_key=True, autoincrement=True),
        *_text("job_id"),
        *_integer("batch_size", "seed"),
        *_integer("budget_samples", nullable=True),
        *_text("state"),
        *_integer("attempts"),
        *_number("not_before_s"),
        *_text("holder", nullable=True),
        *_number("lease_until_s", nullable=True),
        *_text("reason", "curve_sha256", nullable=True),
        *_integer("samples", nullable=True),
        sa.Column("reached", sa.Boolean(), nullable=True),
        *_number("created_s"),
        *_number("finished_s", nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("job_id", "batch_size", "seed"),
    )
    op.create_index("ix_devices_report", "devices", ["seen_s", "name"])
    op.create_index("ix_jobs_claim", "jobs", ["state", "created_s"])
    op.create_index("ix_units_claim", "units", ["state", "not_before_s", "created_s"])
    for table, column in (
        ("jobs", "model_name"),
        ("jobs", "state"),
        ("jobs", "token"),
        ("profiles", "board"),
        ("profiles", "key_sha256"),
        ("trainings", "created_s"),
        ("trainings", "device"),
        ("trainings", "model_name"),
        ("units", "job_id"),
    ):
        op.create_index(f"ix_{table}_{column}", table, [column])
