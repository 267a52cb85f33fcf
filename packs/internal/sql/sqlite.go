package sql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// sqliteHeader begins each SQLite file.
const sqliteHeader = "SQLite format 3\x00"

// inFile executes the statement in a copy of an SQLite file, in memory. The statement can
// neither attach another file nor write.
func inFile(ctx context.Context, in Input) (Output, error) {
	at, file, err := content(in)
	if err != nil {
		return Output{}, err
	}
	if !bytes.HasPrefix(file, []byte(sqliteHeader)) {
		return Output{}, pack.Invalid(at, "not an SQLite database")
	}
	if len(file) > 19 && file[18] == 2 && file[19] == 2 {
		file[18], file[19] = 1, 1 // a database in memory has no write-ahead log
	}
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return Output{}, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return Output{}, err
	}
	defer conn.Close()
	if err := conn.Raw(func(c any) error { return c.(interface{ Deserialize([]byte) error }).Deserialize(file) }); err != nil {
		return Output{}, pack.Invalid(at, "%v", err)
	}
	if _, err := sqlite.Limit(conn, lib.SQLITE_LIMIT_ATTACHED, 0); err != nil {
		return Output{}, err
	}
	if _, err := conn.ExecContext(ctx, "PRAGMA trusted_schema=OFF; PRAGMA query_only=ON"); err != nil {
		return Output{}, sqliteError(ctx, at, err)
	}
	rows, err := conn.QueryContext(ctx, in.Query, in.Args...)
	if err != nil {
		return Output{}, sqliteError(ctx, at, err)
	}
	out, err := result(rows, in.Limit)
	return out, sqliteError(ctx, at, err)
}

// content returns the SQLite file of an input, and the JSON pointer of the argument that is or names
// it.
func content(in Input) (at string, file []byte, err error) {
	switch {
	case (in.Database == "") == (in.Artifact == ""):
		return "", nil, pack.Fail(pack.InvalidInput, "want one of database_b64 and database_artifact")
	case in.Artifact == "":
		file, err = pack.Bytes("/database_b64", in.Database, maxDatabase)
		return "/database_b64", file, err
	}
	at = "/database_artifact"
	b64, ok := in.Artifacts["database_artifact"]
	if !ok {
		return at, nil, pack.Fail(pack.HandlerFailed, "the mesh added no content of database_artifact: the manifest must name it in artifact_inputs")
	}
	file, err = pack.Bytes(at, b64, maxArtifact)
	return at, file, err
}

// sqliteError returns the pack's error for an error of SQLite, or nil if err is nil. at is the JSON
// pointer of the argument with the file.
func sqliteError(ctx context.Context, at string, err error) error {
	var e *sqlite.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return pack.Fail(pack.Timeout, "the statement took longer than %v", queryTime)
	case !errors.As(err, &e):
		return err
	}
	switch e.Code() & 0xff {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return pack.Invalid(at, "%v", e)
	case lib.SQLITE_READONLY:
		return pack.Invalid("/query", "the statement writes: %v", e)
	case lib.SQLITE_NOMEM, lib.SQLITE_TOOBIG:
		return pack.Fail(pack.ResourceExhausted, "%v", e)
	}
	return pack.Invalid("/query", "%v", e)
}

// reading holds the keywords with which a statement that reads begins.
var reading = []string{"SELECT", "WITH", "VALUES", "EXPLAIN", "TABLE", "SHOW"}

// single returns an error unless a query begins, after comments and parentheses, with one of
// the keywords in reading.
func single(query string) error {
	q := strings.TrimSpace(query)
	for {
		var end string
		switch {
		case strings.HasPrefix(q, "--"):
			end = "\n"
		case strings.HasPrefix(q, "/*"):
			end = "*/"
		}
		if end == "" {
			break
		}
		_, after, _ := strings.Cut(q, end)
		q = strings.TrimSpace(after)
	}
	q = strings.TrimLeft(q, "( \t\r\n")
	for _, word := range reading {
		if len(q) > len(word) && strings.EqualFold(q[:len(word)], word) && !letter(q[len(word)]) {
			return nil
		}
	}
	return pack.Invalid("/query", "the statement must begin with %s", strings.Join(reading, ", "))
}

func letter(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
