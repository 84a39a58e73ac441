-- Store of a server at commit f7028ce, the oldest schema that migrates.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0008');
CREATE TABLE devices (
    name VARCHAR NOT NULL,
    status JSON NOT NULL,
    "plan" JSON,
    profile_id VARCHAR,
    job_id VARCHAR,
    seen_s DOUBLE NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE files (
    sha256 VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    bytes INTEGER NOT NULL,
    created_s DOUBLE NOT NULL,
    PRIMARY KEY (sha256)
);
CREATE TABLE jobs (
    id VARCHAR NOT NULL,
    model_name VARCHAR NOT NULL,
    model JSON NOT NULL,
    request JSON NOT NULL,
    state VARCHAR NOT NULL,
    reason VARCHAR,
    warnings JSON NOT NULL,
    curve JSON,
    created_s DOUBLE NOT NULL,
    finished_s DOUBLE, token VARCHAR, is_shared BOOLEAN DEFAULT 0 NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('11111111111111111111111111111111','m','{"batch_sizes":[8,16]}','{"model":"m"}','waiting',NULL,'[]',NULL,1.0,NULL,'0123456789ab',0);
CREATE TABLE models (
    name VARCHAR NOT NULL,
    record JSON NOT NULL,
    digest VARCHAR NOT NULL,
    created_s DOUBLE NOT NULL,
    updated_s DOUBLE NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE profiles (
    id VARCHAR NOT NULL,
    key_sha256 VARCHAR,
    board VARCHAR NOT NULL,
    workload VARCHAR NOT NULL,
    algorithm VARCHAR NOT NULL,
    kind VARCHAR,
    publisher VARCHAR NOT NULL,
    record JSON NOT NULL,
    created_s DOUBLE NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE run_notes (
    training_id VARCHAR NOT NULL,
    tags VARCHAR NOT NULL,
    note VARCHAR NOT NULL,
    PRIMARY KEY (training_id),
    FOREIGN KEY(training_id) REFERENCES trainings (id) ON DELETE CASCADE
);
INSERT INTO "run_notes" VALUES('22222222222222222222222222222222','hot','Fan off.');
CREATE TABLE seen_workers (
    "key" VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    token VARCHAR,
    device VARCHAR NOT NULL,
    torch VARCHAR,
    unit VARCHAR,
    seen_s DOUBLE NOT NULL,
    PRIMARY KEY ("key")
);
INSERT INTO "seen_workers" VALUES('k','n',NULL,'cpu',NULL,NULL,1.0);
CREATE TABLE sessions (
    id VARCHAR NOT NULL,
    token VARCHAR NOT NULL,
    until_s DOUBLE NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE tokens (
    id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    scope VARCHAR NOT NULL,
    secret_sha256 VARCHAR NOT NULL,
    created_s DOUBLE NOT NULL,
    expires_s DOUBLE,
    revoked_s DOUBLE,
    used_s DOUBLE, device VARCHAR,
    PRIMARY KEY (id),
    UNIQUE (name)
);
INSERT INTO "tokens" VALUES('0123456789ab','lab','device','0000000000000000000000000000000000000000000000000000000000000000',1.0,NULL,NULL,NULL,'nano-1');
INSERT INTO "tokens" VALUES('0123456789ac','2','device','1111111111111111111111111111111111111111111111111111111111111111',2.0,NULL,NULL,NULL,NULL);
CREATE TABLE "trainings" (
    id VARCHAR NOT NULL,
    device VARCHAR NOT NULL,
    model_name VARCHAR,
    created_s DOUBLE NOT NULL,
    workload VARCHAR,
    kind VARCHAR,
    batch_size INTEGER,
    micro_batch_size INTEGER,
    clock_mhz DOUBLE,
    memory_clock_mhz DOUBLE,
    cpu_clock_mhz DOUBLE,
    cpu_cores DOUBLE,
    power_limit_w DOUBLE,
    cap_w DOUBLE,
    ended VARCHAR,
    samples INTEGER,
    time_s DOUBLE,
    energy_j DOUBLE,
    power_mean_w DOUBLE,
    power_peak_w DOUBLE,
    above_cap_s DOUBLE,
    record JSON NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO "trainings" VALUES('22222222222222222222222222222222','nano-1','m',3.0,'m',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,5.0,NULL,NULL,NULL,NULL,'{"record":"training"}');
CREATE TABLE units (
    id INTEGER NOT NULL,
    job_id VARCHAR NOT NULL,
    batch_size INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    budget_samples INTEGER,
    state VARCHAR NOT NULL,
    attempts INTEGER NOT NULL,
    not_before_s DOUBLE NOT NULL,
    holder VARCHAR,
    lease_until_s DOUBLE,
    reason VARCHAR,
    curve_sha256 VARCHAR,
    samples INTEGER,
    reached BOOLEAN,
    created_s DOUBLE NOT NULL,
    finished_s DOUBLE,
    PRIMARY KEY (id),
    FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    UNIQUE (job_id, batch_size, seed)
);
INSERT INTO "units" VALUES(1,'11111111111111111111111111111111',8,0,NULL,'done',1,1.0,NULL,NULL,NULL,'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',512,1,1.0,2.0);
INSERT INTO "units" VALUES(2,'11111111111111111111111111111111',16,0,NULL,'waiting',1,1.0,NULL,NULL,NULL,NULL,NULL,NULL,1.0,NULL);
CREATE INDEX ix_jobs_model_name ON jobs (model_name);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_profiles_board ON profiles (board);
CREATE INDEX ix_profiles_key_sha256 ON profiles (key_sha256);
CREATE INDEX ix_units_claim ON units (state, not_before_s, created_s);
CREATE INDEX ix_units_job_id ON units (job_id);
CREATE INDEX ix_jobs_token ON jobs (token);
CREATE INDEX ix_jobs_claim ON jobs (state, created_s);
CREATE INDEX ix_devices_report ON devices (seen_s, name);
CREATE INDEX ix_trainings_created_s ON trainings (created_s);
CREATE INDEX ix_trainings_device ON trainings (device);
CREATE INDEX ix_trainings_model_name ON trainings (model_name);
COMMIT;
