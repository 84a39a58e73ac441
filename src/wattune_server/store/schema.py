"""Tables of the database. Times are seconds since 1970 (``_s``); a record is stored as the JSON that was received."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from wattune.point import KNOBS, Knobs

OPEN = ("waiting", "running")
"""States of a job that is not finished."""


class Base(DeclarativeBase):
    """Declarative base class of the tables."""

    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it from the class
        dict[str, Any]: JSON(none_as_null=True),
        int: BigInteger().with_variant(Integer(), "sqlite"),
    }


class TokenRow(Base):
    """A token. Only the SHA-256 hash of its secret is stored. ``device``: the only device that a token of the
    scope "device" may write for."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    scope: Mapped[str]
    device: Mapped[str | None]
    secret_sha256: Mapped[str]
    created_s: Mapped[float]
    expires_s: Mapped[float | None]
    revoked_s: Mapped[float | None]


class SessionRow(Base):
    """A browser that has signed in with a token, by its id. ``id``: SHA-256 hash of the value of its cookie."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str]
    until_s: Mapped[float]


class FileRow(Base):
    """A file of the file store."""

    __tablename__ = "files"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    bytes: Mapped[int]
    created_s: Mapped[float]


class ModelRow(Base):
    """A model that devices can request: a ``ServedModel``."""

    __tablename__ = "models"

    name: Mapped[str] = mapped_column(primary_key=True)
    record: Mapped[dict[str, Any]]
    digest: Mapped[str]
    created_s: Mapped[float]
    updated_s: Mapped[float]


class JobRow(Base):
    """A sweep. ``model`` is the ``ServedModel`` at the time the job was created; ``curve`` is the finished record.

    ``token``: id of the token that started it. ``attempts``: number of them that failed since a run was finished;
    ``not_before_s``: time of the next one.
    """

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_claim", "state", "created_s"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    model_name: Mapped[str] = mapped_column(index=True)
    model: Mapped[dict[str, Any]]
    request: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(index=True)
    reason: Mapped[str | None]
    curve: Mapped[dict[str, Any] | None]
    token: Mapped[str | None] = mapped_column(index=True)
    created_s: Mapped[float]
    finished_s: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    not_before_s: Mapped[float] = mapped_column(default=0.0, server_default="0")


class RunRow(Base):
    """A finished proxy run of a sweep; its curve is a file of the store."""

    __tablename__ = "proxy_runs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    batch_size: Mapped[int] = mapped_column(primary_key=True)
    seed: Mapped[int] = mapped_column(primary_key=True)
    curve_sha256: Mapped[str]
    samples: Mapped[int]
    reached: Mapped[bool]
    finished_s: Mapped[float]


class ProfileRow(Base):
    """A profile that a device measured."""

    __tablename__ = "profiles"

    id: Mapped[str] = mapped_column(primary_key=True)
    board: Mapped[str] = mapped_column(index=True)
    workload: Mapped[str]
    algorithm: Mapped[str]
    kind: Mapped[str | None]
    publisher: Mapped[str]
    record: Mapped[dict[str, Any]]
    created_s: Mapped[float]


class TrainingRow(Base):
    """A finished training run: a ``TrainingRecord`` with the names of its device and model, and its figures.

    The figures are those of the record, as ``records.figures`` reads them. ``record`` is the last column:
    SQLite reads a row from its beginning, and a record is up to megabytes.
    """

    __tablename__ = "trainings"

    id: Mapped[str] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(index=True)
    model_name: Mapped[str | None] = mapped_column(index=True)
    created_s: Mapped[float] = mapped_column(index=True)
    workload: Mapped[str | None]
    kind: Mapped[str | None]
    batch_size: Mapped[int | None]
    micro_batch_size: Mapped[int | None]
    clock_mhz: Mapped[float | None]
    memory_clock_mhz: Mapped[float | None]
    cpu_clock_mhz: Mapped[float | None]
    cpu_cores: Mapped[float | None]
    power_limit_w: Mapped[float | None]
    cap_w: Mapped[float | None]
    ended: Mapped[str | None]
    samples: Mapped[int | None]
    time_s: Mapped[float | None]
    energy_j: Mapped[float | None]
    power_mean_w: Mapped[float | None]
    power_peak_w: Mapped[float | None]
    above_cap_s: Mapped[float | None]
    record: Mapped[dict[str, Any]]

    @property
    def knobs(self) -> Knobs:
        """Settings of the knobs of the device."""
        values = {name: getattr(self, name) for name in KNOBS}
        return Knobs({name: value for name, value in values.items() if value is not None})


class DeviceRow(Base):
    """The last reported ``DeviceStatus`` of a device."""

    __tablename__ = "devices"
    # The name is in it so that a search by name reads no statuses.
    __table_args__ = (Index("ix_devices_report", "seen_s", "name"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[dict[str, Any]]
    seen_s: Mapped[float]


def insert_new(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless its key exists; True if it was inserted.

    Waits for another transaction that is inserting the same key.
    """
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    # RETURNING, because not every driver reports the number of inserted rows.
    key = inspect(table).primary_key[0]
    result = session.execute(insert(table).values(**values).on_conflict_do_nothing().returning(key))
    return result.first() is not None
