//! The SQLSTATE codes that the pooler raises or looks for, by their names in the `PostgreSQL` documentation,
//! anchor `errcodes-appendix` (18 appendix A). Decisions are made on these, never on a message's text.

/// `successful_completion`: the code of a notice that is only for information.
pub const SUCCESSFUL_COMPLETION: &str = "00000";
/// `connection_exception`: class 08 without anything more precise.
pub const CONNECTION_EXCEPTION: &str = "08000";
/// `sqlclient_unable_to_establish_sqlconnection`: the server cannot be reached.
pub const SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION: &str = "08001";
/// `connection_failure`: a connection that was there broke.
pub const CONNECTION_FAILURE: &str = "08006";
/// `protocol_violation`: also what `PgBouncer` gives for all of its own errors.
pub const PROTOCOL_VIOLATION: &str = "08P01";
/// `feature_not_supported`; also `cached plan must not change result type`.
pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
/// `in_failed_sql_transaction`: only ROLLBACK is accepted.
pub const IN_FAILED_SQL_TRANSACTION: &str = "25P02";
/// `idle_in_transaction_session_timeout`.
pub const IDLE_IN_TRANSACTION_SESSION_TIMEOUT: &str = "25P03";
/// `transaction_timeout` (since `PostgreSQL` 17).
pub const TRANSACTION_TIMEOUT: &str = "25P04";
/// `invalid_sql_statement_name`: no prepared statement has this name.
pub const INVALID_SQL_STATEMENT_NAME: &str = "26000";
/// `invalid_authorization_specification`: refused before any password was looked at.
pub const INVALID_AUTHORIZATION_SPECIFICATION: &str = "28000";
/// `invalid_password`.
pub const INVALID_PASSWORD: &str = "28P01";
/// `invalid_catalog_name`: no such database.
pub const INVALID_CATALOG_NAME: &str = "3D000";
/// `syntax_error`.
pub const SYNTAX_ERROR: &str = "42601";
/// `duplicate_prepared_statement`: the name is in use already.
pub const DUPLICATE_PSTATEMENT: &str = "42P05";
/// `out_of_memory`.
pub const OUT_OF_MEMORY: &str = "53200";
/// `too_many_connections`.
pub const TOO_MANY_CONNECTIONS: &str = "53300";
/// `query_canceled`, by a cancel request or by `statement_timeout`.
pub const QUERY_CANCELED: &str = "57014";
/// `admin_shutdown`.
pub const ADMIN_SHUTDOWN: &str = "57P01";
/// `crash_shutdown`: another server process crashed.
pub const CRASH_SHUTDOWN: &str = "57P02";
/// `cannot_connect_now`: the server is starting up, shutting down or recovering.
pub const CANNOT_CONNECT_NOW: &str = "57P03";
/// `idle_session_timeout`.
pub const IDLE_SESSION_TIMEOUT: &str = "57P05";
/// `config_file_error`: what `PgBouncer` gives when RELOAD fails.
pub const CONFIG_FILE_ERROR: &str = "F0000";
/// `internal_error`.
pub const INTERNAL_ERROR: &str = "XX000";
