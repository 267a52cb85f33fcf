// Package sql has the packs sql.query and sql.server.query, which execute one statement that
// reads a database.
package sql

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Limits of a query.
const (
	maxDatabase = 12 << 20 // bytes of an SQLite file in the arguments
	maxArtifact = 32 << 20 // bytes of an SQLite file that is an artifact
	maxRows     = 10_000
	maxResult   = 4 << 20 // bytes of all values
	defaultRows = 200
	queryTime   = 30 * time.Second
)

// Input is the input of sql.query and sql.server.query. The former has either Database, an SQLite
// file in base64, or Artifact, the id of an artifact that is such a file. The mesh adds the
// artifact's content to Artifacts.
type Input struct {
	Query     string            `json:"query"`
	Args      []any             `json:"args"`
	Database  string            `json:"database_b64"`
	Artifact  string            `json:"database_artifact"`
	Limit     int               `json:"limit"`
	Artifacts map[string]string `json:"_artifacts"` // content in base64, by argument
	Secrets   map[string]string `json:"_secrets"`
}

// Output is the output of both packs. Bytes that are not text are in base64, and times in RFC
// 3339. Truncated means that the statement has more rows than the limits permit.
type Output struct {
	Columns   []string `json:"columns"`
	Rows      [][]any  `json:"rows"`
	Count     int      `json:"count"`
	Truncated bool     `json:"truncated"`
}

// QueryFile executes one statement in a copy of an SQLite file.
func QueryFile(ctx context.Context, in Input) (Output, error) { return query(ctx, in, inFile) }

// QueryServer executes one statement in a read-only transaction of the server at
// DATABASE_URL.
func QueryServer(ctx context.Context, in Input) (Output, error) { return query(ctx, in, onServer) }

// query executes a statement with execute, within the time and the limits of a query.
// Numbers among the arguments that are integers are passed as int64, because JSON does not
// distinguish them.
func query(ctx context.Context, in Input, execute func(context.Context, Input) (Output, error)) (Output, error) {
	if in.Limit = min(in.Limit, maxRows); in.Limit < 1 {
		in.Limit = defaultRows
	}
	for i, a := range in.Args {
		if f, ok := a.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			in.Args[i] = int64(f)
		}
	}
	if err := single(in.Query); err != nil {
		return Output{}, err
	}
	ctx, stop := context.WithTimeout(ctx, queryTime)
	defer stop()
	return execute(ctx, in)
}

// result returns the rows of a statement, up to the limits.
func result(rows *sql.Rows, limit int) (Output, error) {
	defer rows.Close()
	out := Output{Rows: [][]any{}}
	var err error
	if out.Columns, err = rows.Columns(); err != nil {
		return out, err
	}
	if len(out.Columns) == 0 {
		return out, pack.Invalid("/query", "the statement returns no columns: give one that reads, such as SELECT")
	}
	size := 0
	for rows.Next() {
		if len(out.Rows) == limit || size > maxResult {
			out.Truncated = true
			break
		}
		values, targets := make([]any, len(out.Columns)), make([]any, len(out.Columns))
		for i := range values {
			targets[i] = &values[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return out, err
		}
		for i, v := range values {
			values[i] = value(v)
			size += sizeOf(values[i])
		}
		out.Rows = append(out.Rows, values)
	}
	out.Count = len(out.Rows)
	return out, rows.Err()
}

// value converts a value of a row to one that JSON can represent. Numbers that are not
// finite, and integers that a JSON number cannot represent exactly, become strings.
func value(v any) any {
	switch v := v.(type) {
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return base64.StdEncoding.EncodeToString(v)
	case string:
		return strings.ToValidUTF8(v, "\uFFFD")
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case int64:
		if v > 1<<53 || v < -1<<53 {
			return fmt.Sprint(v)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case nil, bool:
	default:
		return fmt.Sprint(v)
	}
	return v
}

// sizeOf returns the approximate number of bytes of a value in the output.
func sizeOf(v any) int {
	if s, ok := v.(string); ok {
		return len(s) + 2
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return 0
	}
	return len(raw)
}
