package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/schemas"
)

// mutation changes the responses that the conformance runner receives.
type mutation struct {
	path   string // regular expression for "METHOD path" of the requests whose responses are changed
	change func(r *http.Response, body []byte) []byte
}

func status(n int) func(*http.Response, []byte) []byte {
	return func(r *http.Response, b []byte) []byte { r.StatusCode = n; return b }
}

func replace(old, repl string) func(*http.Response, []byte) []byte {
	re := regexp.MustCompile(old)
	return func(_ *http.Response, b []byte) []byte { return re.ReplaceAll(b, []byte(repl)) }
}

// otherHash changes the first hash of a proof, whatever it is.
func otherHash(_ *http.Response, b []byte) []byte {
	if _, rest, ok := bytes.Cut(b, []byte(`"path":["`)); ok {
		if rest[0] == '0' {
			rest[0] = '1'
		} else {
			rest[0] = '0'
		}
	}
	return b
}

func without(header string) func(*http.Response, []byte) []byte {
	return func(r *http.Response, b []byte) []byte { r.Header.Del(header); return b }
}

// lines returns a function that applies a change to the list of lines of a response with
// status 200.
func lines(change func([]string) []string) func(*http.Response, []byte) []byte {
	return func(r *http.Response, b []byte) []byte {
		if r.StatusCode != http.StatusOK {
			return b
		}
		return []byte(strings.Join(change(strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")), ""))
	}
}

func flip(at int) func(*http.Response, []byte) []byte {
	return func(_ *http.Response, b []byte) []byte {
		b = bytes.Clone(b)
		if len(b) > at {
			b[at] ^= 1
		}
		return b
	}
}

// mutations maps each gate of the conformance run to mutations of the responses; the
// gate must fail for each of them.
var mutations = map[string][]mutation{
	"health":         {{"GET /readyz", status(503)}, {"GET /readyz", replace(`"ready":true`, `"ready":false`)}},
	"metrics":        {{"GET /metrics", replace("# TYPE", "#")}},
	"authentication": {{"GET /v1/models", status(200)}, {"POST /api/v1/packs", status(200)}, {"GET /helm/receipts", status(200)}, {"POST /mcp", status(200)}},
	"models":         {{"GET /v1/models", replace(`"object":"list"`, `"object":"set"`)}, {"GET /v1/models", replace(`"data":\[.*\]`, `"data":[]`)}},
	"chat":           {{"POST /v1/chat", without("X-Binnacle-Receipt-Id")}, {"POST /v1/chat", replace(`"finish_reason"`, `"reason"`)}},
	"chat-stream":    {{"POST /v1/chat", replace(`data: \[DONE\]\n\n`, "")}, {"POST /v1/chat", without("X-Binnacle-Receipt-Id")}},
	"packs":          {{"GET /api/v1/packs", replace(`cmd.upper`, `cmd.lower`)}, {"GET /api/v1/packs/", replace(`"input_schema"`, `"schema"`)}},
	"call":           {{"POST /api/v1/packs/cmd.upper", without("X-Binnacle-Decision-Id")}, {"POST /api/v1/packs/cmd.upper", replace(`"receipt_id"`, `"id"`)}},
	"denial":         {{"POST /api/v1/packs/conform", status(200)}, {"POST /api/v1/packs/conform", replace(`"receipt_id":"[^"]*"`, `"receipt_id":""`)}, {"POST /api/v1/packs/conform", replace(`UNKNOWN_TOOL`, `no`)}},
	"arguments":      {{"POST /api/v1/packs/cmd.upper", replace(`ARGS_UNKNOWN_FIELD|SCHEMA_VIOLATION`, `OK`)}, {"POST /api/v1/packs/cmd.upper", without("X-Binnacle-Verdict")}},
	"bad-input":      {{"POST /api/v1/packs/cmd.upper", replace(`"param":"body"`, `"param":""`)}, {"GET /conform", status(200)}},
	"mcp":            {{"POST /mcp", without("Mcp-Session-Id")}, {"POST /mcp", replace(`"isError":true`, `"isError":false`)}, {"POST /mcp", replace(`"name":"cmd.upper"`, `"name":"x"`)}},
	"helm":           {{"POST /mcp/v1/execute", replace(`"args_hash":"sha256:`, `"args_hash":"md5:`)}, {"GET /mcp/v1/capabilities", replace(`"governance"`, `"g"`)}},
	"receipts": {
		{"GET /helm/receipts", lines(func(l []string) []string { return l[:len(l)-1] })},
		{"GET /helm/receipts", lines(func(l []string) []string { l[0], l[1] = l[1], l[0]; return l })},
		{"GET /helm/receipts", replace(`"verdict":"DENY"`, `"verdict":"ALLOW"`)},
	},
	"receipt-chain": {
		{"GET /helm/receipts", lines(func(l []string) []string { return append(l[:1:1], l[2:]...) })},
		{"GET /helm/receipts", replace(`"lamport":`, `"lamport":1`)},
		{"GET /helm/receipts", replace(`"prev":"sha256:..`, `"prev":"sha256:00`)},
	},
	"receipt-signatures": {
		{"GET /helm/receipts", replace(`"reason_code":"RULE_SCOPED_CALL"`, `"reason_code":"RULE_OTHER"`)},
		{"GET /helm/receipts", replace(`"executor":"policy"`, `"executor":"audit"`)},
		{`GET /api/v1/events\?type=key_published`, lines(func(l []string) []string { return l[1:] })},
	},
	"sessions": {{"GET /api/v1/proofgraph/sessions", replace(`"receipt_count":`, `"receipt_count":1`)}, {"GET /api/v1/proofgraph/sessions", replace(`"tip":"sha256:..`, `"tip":"sha256:zz`)}, {"GET /api/v1/proofgraph/sessions", replace(`"session_id":"s-x`, `"session_id":"s-y`)}},
	"proofgraph": {
		{"GET /helm/proofgraph", replace(`"kind":"INTENT"`, `"kind":"EFFECT"`)},
		{"GET /helm/proofgraph", replace(`"lamport":[0-9]+`, `"lamport":7`)},
		{"GET /helm/proofgraph", replace(`^(\{[^\[]*?)"digest":"sha256:..`, `$1"digest":"sha256:zz`)},
		{"GET /helm/proofgraph", replace(`"principal":"policy"`, `"principal":"unknown"`)},
	},
	"idempotency": {{"POST /api/v1/packs/cmd.upper", func(r *http.Response, b []byte) []byte {
		serial++
		r.Header.Set("X-Binnacle-Receipt-Id", fmt.Sprint("r-", serial))
		return b
	}}, {"POST /api/v1/packs/conform", status(403)}},
	"checkpoint":  {{"GET /log/checkpoint", flip(40)}, {"GET /log/checkpoint", replace(`(?m)^[0-9]+$`, "1")}},
	"inclusion":   {{"GET /api/v1/ledger/[0-9]+/proof", otherHash}, {"GET /api/v1/ledger/[0-9]+/proof", replace(`"index":`, `"index":1`)}, {`GET /api/v1/events\?session`, replace(`"actor":"admin"`, `"actor":"unknown"`)}},
	"consistency": {{"GET /log/consistency", otherHash}, {"GET /log/consistency", replace(`"path":\[[^\]]*\]`, `"path":[]`)}},
	"tiles":       {{"GET /log/tile/", flip(33)}, {"GET /log/tile/", func(_ *http.Response, b []byte) []byte { return b[:len(b)-32] }}},
	"ledger":      {{`GET /api/v1/ledger\?`, replace(`"actor":"admin"`, `"actor":"unknown"`)}, {`GET /api/v1/ledger\?`, lines(func(l []string) []string { return l[:len(l)-1] })}},
	"evidence":    {{"GET /api/v1/sessions/", flip(5000)}, {"GET /api/v1/sessions/", func(_ *http.Response, b []byte) []byte { return b[:len(b)-512] }}},
	"completeness": {{"GET /api/v1/sessions/", func(_ *http.Response, b []byte) []byte {
		serial++
		return append(b, strconv.Itoa(serial)...)
	}}, {"GET /helm/receipts", replace(`"status":"succeeded"`, `"status":"cancelled"`)}},
}

var serial int

// TestConformCanFail shows for each gate that the conformance run fails for each of
// the gate's mutations of the responses, and that the gate does not pass.
func TestConformCanFail(t *testing.T) {
	m := harness.One(t, harness.Options{})
	var names []string
	levelOf := map[string]string{} // by gate; the gates of higher levels need not run
	for _, level := range []string{"l1", "l2", "l3"} {
		b, err := schemas.Conformance.ReadFile("conformance/http/" + level + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var gates []struct{ Gate string }
		if err := json.Unmarshal(b, &gates); err != nil {
			t.Fatal(err)
		}
		for _, g := range gates {
			names = append(names, g.Gate)
			levelOf[g.Gate] = strings.ToUpper(level)
		}
	}
	up, err := url.Parse("http://" + m.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, gate := range names {
		if len(mutations[gate]) == 0 {
			t.Errorf("no endpoint shows that gate %s can fail", gate)
		}
		for i, mut := range mutations[gate] {
			t.Run(fmt.Sprint(gate, "/", i), func(t *testing.T) {
				re := regexp.MustCompile(mut.path)
				spoiled := 0
				proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
					r.SetURL(up)
					r.Out.Header.Set("Accept-Encoding", "identity")
				}}
				proxy.ModifyResponse = func(r *http.Response) error {
					if !re.MatchString(r.Request.Method + " " + r.Request.URL.RequestURI()) {
						return nil
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return err
					}
					spoiled++
					body = mut.change(r, body)
					r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
					r.Header.Set("Content-Length", strconv.Itoa(len(body)))
					return nil
				}
				srv := httptest.NewServer(proxy)
				defer srv.Close()
				out, err := m.CLI("conform", "--endpoint", srv.URL, "--json", "--level", levelOf[gate])
				if err == nil {
					t.Fatalf("it conforms; %d answers were spoiled", spoiled)
				}
				type result struct {
					Gate string
					Pass bool
				}
				var doc struct{ Gates []result }
				if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):strings.LastIndex(out, "}")+1]), &doc); err != nil {
					t.Fatal(err, out)
				}
				i := slices.IndexFunc(doc.Gates, func(g result) bool { return g.Gate == gate })
				if i < 0 || doc.Gates[i].Pass {
					t.Errorf("gate %s passes or did not run; %d answers were spoiled", gate, spoiled)
				}
			})
		}
	}
}
