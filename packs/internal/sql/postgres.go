package sql

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/binnacle-mesh/binnacle/packs/internal/dial"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// passwordSecret is the name of the secret with the password of the database's user.
const passwordSecret = "sql-password"

// onServer executes the statement on the PostgreSQL server at DATABASE_URL, in a read-only
// transaction that is rolled back. The password is that of the secret sql-password.
func onServer(ctx context.Context, in Input) (Output, error) {
	conf, err := serverConfig(os.Getenv("DATABASE_URL"), in.Secrets[passwordSecret])
	if err != nil {
		return Output{}, err
	}
	db := stdlib.OpenDB(*conf)
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return Output{}, serverError(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // nothing was written
	// The driver prepares the query, and the server refuses to prepare several statements.
	rows, err := tx.QueryContext(ctx, in.Query, in.Args...)
	if err != nil {
		return Output{}, serverError(ctx, err)
	}
	out, err := result(rows, in.Limit)
	return out, serverError(ctx, err)
}

// serverConfig returns the configuration of a connection. The password is not part of the
// URL, because the environment of a pack is not secret. Without sslmode in the URL, the
// server must have a valid certificate for its name.
func serverConfig(address, password string) (*pgx.ConnConfig, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return nil, &pack.Error{Code: pack.HandlerFailed, Message: "DATABASE_URL: not of the form postgres://USER@HOST:PORT/NAME", Hint: "set DATABASE_URL in the env of the pack's manifest"}
	}
	if !strings.Contains(address, "sslmode=") {
		address += map[bool]string{true: "&", false: "?"}[strings.Contains(address, "?")] + "sslmode=verify-full"
	}
	conf, err := parse(address)
	if own, ok := errors.AsType[*pack.Error](err); ok {
		return nil, own
	}
	if err != nil {
		return nil, pack.Fail(pack.HandlerFailed, "DATABASE_URL: %v", err) // the error has no password
	}
	roots, err := dial.Roots()
	if err != nil {
		return nil, err
	}
	for _, c := range append([]*pgconn.FallbackConfig{{TLSConfig: conf.TLSConfig}}, conf.Fallbacks...) {
		if c.TLSConfig != nil {
			c.TLSConfig.RootCAs = roots
		}
	}
	conf.Password = password
	conf.DialFunc = dial.Context
	conf.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil } // the proxy resolves names
	conf.RuntimeParams["application_name"] = "binnacle"
	conf.RuntimeParams["default_transaction_read_only"] = "on"
	conf.RuntimeParams["statement_timeout"] = "30000"
	conf.RuntimeParams["timezone"] = "UTC"
	return conf, nil
}

// parse is pgx.ParseConfig without the settings that pgx reads elsewhere: from variables
// that begin with PG, and from files in the home folder or, with a service, in a service
// file. They could name another server, or lower the verification of its certificate. parse
// removes the variables from the environment. It must not be called concurrently with code
// that reads HOME.
func parse(address string) (*pgx.ConnConfig, error) {
	u, err := url.Parse(address)
	if err != nil {
		return pgx.ParseConfig(address) // its error does not contain the password
	}
	for _, key := range []string{"service", "servicefile", "passfile"} {
		if u.Query().Has(key) {
			return nil, &pack.Error{Code: pack.HandlerFailed, Message: "DATABASE_URL: the parameter " + key + " names settings outside of the URL", Hint: "remove " + key + " from DATABASE_URL, and write the settings in the URL"}
		}
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PG") {
			if err := os.Unsetenv(name); err != nil {
				return nil, err
			}
		}
	}
	if home, ok := os.LookupEnv("HOME"); ok {
		if err := os.Unsetenv("HOME"); err != nil {
			return nil, err
		}
		defer func() { _ = os.Setenv("HOME", home) }() // fails only for an invalid name
	}
	return pgx.ParseConfig(address)
}

// serverError returns the pack's error for an error of PostgreSQL, or nil if err is nil.
// The classes of codes are those of appendix A of its documentation.
func serverError(ctx context.Context, err error) error {
	var e *pgconn.PgError
	var own *pack.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &e):
	case ctx.Err() != nil:
		return pack.Fail(pack.Timeout, "the statement took longer than %v", queryTime)
	default:
		return pack.Fail(pack.HandlerFailed, "the database server failed: %v", err)
	}
	switch class := e.Code[:min(2, len(e.Code))]; {
	case e.Code == "25006":
		return pack.Invalid("/query", "the statement writes: %s", e.Message)
	case e.Code == "57014":
		return pack.Fail(pack.Timeout, "the statement took longer than %v", queryTime)
	case class == "28":
		return &pack.Error{Code: pack.CredentialInvalid, Message: "the database server refused the login", Hint: "store the password of the user in DATABASE_URL with `binnacle secret put " + passwordSecret + "`"}
	case class == "42", class == "22", class == "26":
		return pack.Invalid("/query", "%s", e.Message)
	case class == "53", class == "54":
		return pack.Fail(pack.ResourceExhausted, "%s", e.Message)
	}
	return pack.Fail(pack.HandlerFailed, "the database server failed: %s (%s)", e.Message, e.Code)
}
