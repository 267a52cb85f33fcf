package pack

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// brokerReasons returns the constants of the type Reason in the files of the egress-broker and of the
// package netrule. Packs cannot import them (ARCHITECTURE.md).
func brokerReasons(t *testing.T) (out []string) {
	for _, name := range []string{"../../../services/egress-broker/internal/proxy/reason.go", "../../../pkg/core/netrule/reason.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			typ := spec.Type
			if sel, ok := typ.(*ast.SelectorExpr); ok {
				typ = sel.Sel
			}
			if id, ok := typ.(*ast.Ident); ok && id.Name == "Reason" {
				for _, v := range spec.Values {
					text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, text)
				}
			}
			return true
		})
	}
	slices.Sort(out)
	return out
}

// TestReasons checks the error for each reason that the egress-broker has: its code, and whether it
// states that the request is not permitted. It fails if the egress-broker has a reason that is not
// in the table, or lacks one that is.
func TestReasons(t *testing.T) {
	denied := []string{"address_blocked", "host_denied", "method_denied", "mode_denied", "path_ambiguous", "path_denied", "port_denied"}
	codes := map[string]string{
		"authority_mismatch":  InvalidInput,
		"broker_failed":       HandlerFailed,
		"bytes_exceeded":      ResourceExhausted,
		"call_ended":          HandlerFailed,
		"certificate_invalid": HandlerFailed,
		"client_failed":       HandlerFailed,
		"connect_failed":      HandlerFailed,
		"credential_echoed":   CredentialInvalid,
		"credential_failed":   CredentialInvalid,
		"encoding_unknown":    HandlerFailed,
		"endpoint_unknown":    HandlerFailed,
		"flows_exceeded":      ResourceExhausted,
		"host_invalid":        InvalidInput,
		"request_invalid":     InvalidInput,
		"resolve_failed":      HandlerFailed,
		"sni_mismatch":        HandlerFailed,
		"timed_out":           Timeout,
		"tls_invalid":         HandlerFailed,
		"upstream_failed":     HandlerFailed,
	}
	for _, why := range denied {
		codes[why] = InvalidInput
	}
	if got, want := brokerReasons(t), slices.Sorted(maps.Keys(codes)); !slices.Equal(got, want) {
		t.Errorf("the egress-broker has the reasons %q, the table %q", got, want)
	}
	for why, code := range codes {
		e := Refused("a.test", why)
		if e.Code != code || strings.Contains(e.Message, "was refused") != slices.Contains(denied, why) {
			t.Errorf("%s: %+v", why, *e)
		}
	}
}
