package tlog_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestTiles checks that level, index and width are parsed from a tile's path in the C2SP
// layout, that only the responses with full tiles are marked as immutable, and that
// invalid paths are rejected before audit is queried.
func TestTiles(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	var query map[string]uint64
	m.Answers["audit tile"] = func(raw json.RawMessage) (any, error) {
		query = nil
		return base64.StdEncoding.EncodeToString([]byte("hashes")), json.Unmarshal(raw, &query)
	}
	who := m.Token("w", token.Audit)
	for path, want := range map[string][3]uint64{
		"0/000": {0, 0, 256}, "1/067": {1, 67, 256}, "0/x001/067": {0, 1067, 256}, "2/x001/x234/067": {2, 1234067, 256}, "0/x001/x234/067.p/12": {0, 1234067, 12},
	} {
		r := m.Do("GET", "/log/tile/"+path, who, "")
		if r.Code != 200 || r.Body.String() != "hashes" || [3]uint64{query["level"], query["index"], query["width"]} != want {
			t.Errorf("%s: %d, audit was queried for %v", path, r.Code, query)
		}
		if immutable := strings.Contains(r.Header().Get("Cache-Control"), "immutable"); immutable != (want[2] == 256) {
			t.Errorf("%s: Cache-Control %q", path, r.Header().Get("Cache-Control"))
		}
	}
	m.Queried()
	for _, path := range []string{"0/1", "0/0000", "0/x001", "0/001/002", "0/x001/x002", "0/001.p/0", "0/001.p/256", "0/001.p/x", "x/001", "0/-01", "300/001"} {
		if r := m.Do("GET", "/log/tile/"+path, who, ""); r.Code != 400 || r.Param() != "tile" {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
	if q := m.Queried(); len(q) != 0 {
		t.Error("audit was queried", q)
	}
}

// TestParameters checks which parameters of requests for checkpoints, consistency proofs
// and cosignatures are sent to audit, and which are rejected.
func TestParameters(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	query := map[string]json.RawMessage{}
	for verb, answer := range map[string]any{"checkpoint": "origin\n7\nhash\n", "consistency": map[string]any{"hashes": []string{}}, "cosign": map[string]any{"accepted": true}} {
		m.Answers["audit "+verb] = func(raw json.RawMessage) (any, error) { query[verb] = raw; return answer, nil }
	}
	audit := m.Token("w", token.Audit, token.Cosign)
	for _, c := range []struct{ method, path, body, verb, want, param string }{
		{"GET", "/log/checkpoint", "", "checkpoint", `{}`, ""},
		{"GET", "/log/checkpoint?witness=true&witnessed=3&epoch=2", "", "checkpoint", `"epoch":2,"witness":true,"witnessed":3`, ""},
		{"GET", "/log/checkpoint?witnessed=many", "", "", "", "witnessed"},
		{"GET", "/log/checkpoint?epoch=0", "", "", "", "epoch"},
		{"GET", "/log/consistency?from=1&to=2", "", "consistency", `"from":1,"to":2`, ""},
		{"GET", "/log/consistency?from=1", "", "", "", "to"},
		{"POST", "/log/cosignatures", `{"size":7,"line":"— w x"}`, "cosign", `"size":7`, ""},
	} {
		clear(query)
		r := m.Do(c.method, c.path, audit, c.body)
		if c.param != "" {
			if r.Code != 400 || r.Param() != c.param {
				t.Errorf("%s: %d %s", c.path, r.Code, r.Body)
			}
		} else if r.Code != 200 || !strings.Contains(string(query[c.verb]), c.want) {
			t.Errorf("%s: %d, %s was queried with %s", c.path, r.Code, c.verb, query[c.verb])
		}
	}
	if r := m.Do("GET", "/log/checkpoint", audit, ""); r.Header().Get("Content-Type") != "text/plain; charset=utf-8" || !strings.HasPrefix(r.Body.String(), "origin\n") {
		t.Error(r.Header(), r.Body)
	}
}
