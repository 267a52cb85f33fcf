package sessionrunner

import (
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/pack"
)

// TestContents checks which members of an output become artifacts, and which outputs are
// rejected.
func TestContents(t *testing.T) {
	specs := []pack.Artifact{{Member: "patch", Name: "a", MediaType: "text/x-diff"}, {Member: "page", Name: "b", MediaType: "image/png", Base64: true},
		{Member: "shots", Name: "s.png", MediaType: "image/png", Base64: true, List: true}}
	for in, want := range map[string]string{
		`{"n":1}`:                        "",
		`{"patch":"","page":""}`:         "",
		`{"patch":"é\n","page":"AAE="}`:  "patch é\n;page \x00\x01;",
		`{"patch":"only","other":"AA="}`: "patch only;",
		`{"patch":5}`:                    "error: member patch",
		`{"patch":null,"page":"-"}`:      "error: member page",
		`{"page":["AAE="]}`:              "error: member page",
		`{"shots":["AAE=","AA=="]}`:      "shots \x00\x01;shots \x00;",
		`{"shots":[]}`:                   "",
		`{"shots":"AAE="}`:               "error: member shots, which is to be an artifact, is not an array",
		`{"shots":["AAE=",""]}`:          "error: member shots, which is to be an artifact, has an empty item",
		`{"shots":["\n"]}`:               "error: member shots, which is to be an artifact, has an empty item",
		`{"shots":["-"]}`:                "error: member shots, which is to be an artifact, is not base64",
		`[1]`:                            "error: ",
		`null`:                           "error: the output",
	} {
		got := ""
		members, all, err := contents([]byte(in), specs)
		for _, m := range all {
			got += m.Member + " " + string(m.content) + ";"
		}
		if err != nil {
			got = "error: " + err.Error()
		}
		if err == nil && (got != want || len(members) != strings.Count(in, `":`)) || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

// TestListed checks the names of the artifacts of a list, the output with their ids, and that a
// longer list than MaxListed is rejected.
func TestListed(t *testing.T) {
	specs := []pack.Artifact{{Member: "shots", Name: "shot.png", MediaType: "image/png", List: true}}
	members, all, err := contents([]byte(`{"n":1,"shots":["a","b","a"]}`), specs)
	if err != nil || len(all) != 3 || all[0].Name != "shot-1.png" || all[2].Name != "shot-3.png" {
		t.Fatalf("%+v %v", all, err)
	}
	out, err := named(members, all)
	a, b := artifact.ID("sha256:"+all[0].sum()), artifact.ID("sha256:"+all[1].sum())
	if want := `{"n":1,"shots":["` + a + `","` + b + `","` + a + `"]}`; err != nil || string(out) != want || a == b {
		t.Errorf("%s %v, want %s", out, err, want)
	}
	long := `{"shots":["a"` + strings.Repeat(`,"a"`, pack.MaxListed) + `]}`
	if _, _, err := contents([]byte(long), specs); err == nil || !strings.Contains(err.Error(), "more than 64 items") {
		t.Errorf("a long list: %v", err)
	}
}

// TestKeepChecks checks that keep refuses an output that, with the ids of its artifacts, violates
// the output schema, before it reads the quota and stores anything. The service has no connection,
// so keep panics if the output is valid.
func TestKeepChecks(t *testing.T) {
	tool := contract.Tool{OutputSchema: contract.Raw(`{"properties":{"n":{"type":"integer"},"note":{"pattern":"^ar-[0-9a-f]{64}$","type":"string"}},"required":["n","note"],"type":"object"}`)}
	p := &pack.Pack{Tool: tool, Digest: contract.Digest(&tool), Artifacts: []pack.Artifact{{Member: "note", Name: "a", MediaType: "text/plain"}}}
	s := &Service{}
	for in, want := range map[string]string{
		`{"note":"x"}`:                "breaks the output schema at /",
		`{"n":"1","note":"x"}`:        "breaks the output schema at /n",
		`{"n":1,"note":"x","more":2}`: "breaks the output schema at /",
	} {
		if res := s.keep(t.Context(), work(), p, execute.Result{Output: []byte(in)}); res.ErrorCode != contract.CodeInvalidOutput || !strings.Contains(res.ErrorMessage, want) || len(res.Artifacts) > 0 {
			t.Errorf("%s: %+v", in, res)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a valid output is not stored")
		}
	}()
	s.keep(t.Context(), work(), p, execute.Result{Output: []byte(`{"n":1,"note":"x"}`)})
}
