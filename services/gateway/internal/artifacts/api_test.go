package artifacts_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/artifact"
	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/schemas/work"
	"github.com/binnacle-mesh/binnacle/services/gateway/gateway"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/edgetest"
	"github.com/binnacle-mesh/binnacle/services/gateway/token"
)

// TestUpload checks an upload: that the call names the content that was stored, that nothing
// is stored or proposed for one that is refused, and that the bytes of one whose call did not
// succeed count in the quota.
func TestUpload(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.artifact.put")
	var calls []work.Artifact
	deny := false
	m.Execute = func(c *edgetest.Call) {
		var a struct{ Digest, Upload, Name, MediaType string }
		args := strings.ReplaceAll(string(c.Args), "media_type", "MediaType")
		if err := json.Unmarshal([]byte(args), &a); err != nil {
			t.Error(err)
		}
		calls = append(calls, work.Artifact{Artifact: artifact.ID(a.Digest), Upload: a.Upload, Name: a.Name, MediaType: a.MediaType})
		if deny {
			c.Deny(contract.ReasonNoPolicyDefined)
			return
		}
		c.Succeed([]byte(`{}`))
	}
	m.Answers["work artifact_usage"] = work.ArtifactUsage{Quota: 100, Used: 90}
	ann := m.Token("ann", token.Tools)
	upload := func(query, body string, headers ...string) string {
		calls = nil
		before := m.Artifacts.Len()
		r := m.Do(http.MethodPost, "/api/v1/artifacts"+query, ann, body, headers...)
		if m.Artifacts.Len() > before != (len(calls) > 0) {
			t.Errorf("%s: %d new parts, %d calls", query, m.Artifacts.Len()-before, len(calls))
		}
		return fmt.Sprint(r.Code, " ", r.Error(), " ", len(calls))
	}
	for _, x := range []struct {
		query, body string
		deny        bool
		want        string
	}{
		{"", "12345678901", false, "413 " + contract.CodeBodyTooLarge + " 0"},
		{"?retain_s=x", "1", false, "400 " + contract.CodeInvalidInput + " 0"},
		{"?labels=case", "1", false, "400 " + contract.CodeInvalidInput + " 0"},
		{"?labels=" + strings.Repeat("a=1,", 16) + "a=1", "1", false, "400 " + contract.CodeInvalidInput + " 0"},
		{"?name=n", "1234567890", false, "200  1"},
		{"", "123456789", true, "403 " + contract.CodeDenied + " 1"},
		{"", "12", false, "413 " + contract.CodeBodyTooLarge + " 0"},
		{"", "1", false, "200  1"},
	} {
		deny = x.deny
		if got := upload(x.query, x.body, "Content-Type: text/plain"); got != x.want {
			t.Errorf("%s %s: %s, want %s", x.query, x.body, got, x.want)
		}
		if x.query == "?name=n" {
			if len(calls) != 1 || calls[0].Name != "n" || calls[0].MediaType != "text/plain" {
				t.Errorf("%+v", calls)
			} else if _, err := m.Artifacts.Get(t.Context(), "t.gateway."+calls[0].Upload+".0"); err != nil {
				t.Error(err)
			}
		}
	}
	if got := upload("", "1", "Content-Encoding: gzip"); !strings.HasPrefix(got, "415 ") {
		t.Error(got)
	}
	delete(m.Answers, "work artifact_usage")
	if got := upload("", "1"); !strings.HasPrefix(got, "503 ") {
		t.Error(got)
	}
	if r := m.Do(http.MethodPost, "/api/v1/artifacts", "", "1"); r.Code != http.StatusUnauthorized {
		t.Errorf("without a credential: %d", r.Code)
	}
}

// TestRepeatedUpload checks that an upload under the Idempotency-Key of an earlier one returns the
// first outcome and stores nothing if content, name, labels and retention are equal, and is a
// conflict otherwise; that keys of different principals are independent; and that a repetition
// after a denial is a new upload.
func TestRepeatedUpload(t *testing.T) {
	m := edgetest.New(t, gateway.Config{}, "tool.artifact.put", "tool.a")
	executed, deny := 0, false
	m.Execute = func(c *edgetest.Call) {
		if deny {
			c.Deny(contract.ReasonNoPolicyDefined)
			return
		}
		executed++
		c.Succeed([]byte(fmt.Sprintf(`{"n":%d}`, executed)))
	}
	m.Answers["work artifact_usage"] = work.ArtifactUsage{Quota: 1000}
	tokens := map[string]string{"ann": m.Token("ann", token.Tools), "bob": m.Token("bob", token.Tools)}
	for _, x := range []struct {
		as, key, query, body string
		deny                 bool
		want                 string
		parts                int
	}{
		{"ann", "k", "?name=n", "content", false, "200 map[n:1]", 2},
		{"ann", "k", "?name=n", "content", false, "200 map[n:1]", 0},
		{"ann", "k", "?name=n", "CONTENT", false, "409 ", 0},
		{"ann", "k", "?name=n", "content and more", false, "409 ", 0},
		{"ann", "k", "?name=n", "", false, "409 ", 0},
		{"ann", "k", "?name=m", "content", false, "409 ", 0},
		{"ann", "k", "?name=n&labels=a=1", "content", false, "409 ", 0},
		{"ann", "labels", "?labels=a=1,b=2", "x", false, "200 map[n:2]", 2},
		{"ann", "labels", "?labels=a=1,b=2", "x", false, "200 map[n:2]", 0},
		{"ann", "labels", "?labels=b=2", "x", false, "409 ", 0},
		{"ann", "k", "?name=n&retain_s=5", "content", false, "409 ", 0},
		{"bob", "k", "?name=n", "content", false, "200 map[n:3]", 2},
		{"ann", "", "?name=n", "content", false, "200 map[n:4]", 2},
		{"ann", "denied", "", "x", true, "403 ", 2},
		{"ann", "denied", "", "x", false, "200 map[n:5]", 2},
		{"ann", "denied", "", "x", false, "200 map[n:5]", 0},
	} {
		deny = x.deny
		before, headers := m.Artifacts.Len(), []string{"Content-Type: text/plain"}
		if x.key != "" {
			headers = append(headers, "Idempotency-Key: "+x.key)
		}
		r := m.Do(http.MethodPost, "/api/v1/artifacts"+x.query, tokens[x.as], x.body, headers...)
		got := fmt.Sprint(r.Code, " ")
		if r.Code == http.StatusOK {
			got += fmt.Sprint(r.Doc["output"])
		}
		if got != x.want || m.Artifacts.Len()-before != x.parts { // the content and its index
			t.Errorf("%+v: %s, %d parts: %s", x, got, m.Artifacts.Len()-before, r.Body)
		}
	}
	m.Do(http.MethodPost, "/api/v1/calls", tokens["ann"], `{"kind":"tool.a"}`, "Idempotency-Key: other")
	if r := m.Do(http.MethodPost, "/api/v1/artifacts", tokens["ann"], "x", "Idempotency-Key: other"); r.Code != http.StatusConflict {
		t.Errorf("the key of another call: %d %s", r.Code, r.Body)
	}
}

// TestRead checks what the gateway queries for a caller, that it responds with the content of
// a stored artifact, and its errors.
func TestRead(t *testing.T) {
	m := edgetest.New(t, gateway.Config{})
	o, err := artifact.Write(t.Context(), m.Artifacts, edgetest.Tenant, "gateway", "", 0, strings.NewReader("content"))
	if err != nil {
		t.Fatal(err)
	}
	id := artifact.ID(o.Digest)
	var infos []work.ArtifactInfoRequest
	var lists []work.ArtifactListRequest
	m.Answers["work artifact_info"] = func(raw json.RawMessage) (any, error) {
		var q work.ArtifactInfoRequest
		err := json.Unmarshal(raw, &q)
		infos = append(infos, q)
		if q.Artifact != id {
			return nil, rpc.Errorf(contract.CodeNotFound, "not found")
		}
		return work.Artifact{Artifact: id, Index: o.Index, MediaType: "text/plain", Service: "gateway", Size: o.Size, Stored: contract.Time(time.Now()), Upload: o.Upload}, err
	}
	m.Answers["work artifact_list"] = func(raw json.RawMessage) (any, error) {
		var q work.ArtifactListRequest
		err := json.Unmarshal(raw, &q)
		lists = append(lists, q)
		return []work.Artifact{}, err
	}
	ann, auditor := m.Token("ann", token.Tools), m.Token("eve", token.Audit)
	for _, x := range []struct {
		as, path string
		status   int
		want     string // owner of the query, and its limit if it is a list; or the code of the error
	}{
		{ann, "", 200, "ann 100"}, {ann, "?limit=7&before=u-1", 200, "ann 7"}, {ann, "?label=a=1", 200, "ann 100 a=1"}, {ann, "?label=a", 400, contract.CodeInvalidInput}, {ann, "?all=false", 200, "ann 100"}, {auditor, "", 200, "eve 100"}, {auditor, "?all=true", 200, "100"},
		{ann, "?all=true", 403, contract.CodeScopeMissing}, {ann, "?limit=0", 400, contract.CodeInvalidInput}, {"", "", 401, contract.CodeTokenMissing},
		{ann, "/" + id, 200, "ann"}, {auditor, "/" + id, 200, ""}, {ann, "/ar-1", 400, contract.CodeInvalidInput}, {"", "/" + id, 401, contract.CodeTokenMissing},
		{ann, "/" + id + "/content", 200, "ann"}, {auditor, "/" + id + "/content", 200, ""}, {"", "/" + id + "/content", 401, contract.CodeTokenMissing}, {ann, "/" + id[:len(id)-1] + "x/content", 400, contract.CodeInvalidInput},
	} {
		infos, lists = nil, nil
		r := m.Do(http.MethodGet, "/api/v1/artifacts"+x.path, x.as, "")
		got := r.Error()
		switch {
		case len(infos) == 1:
			got = infos[0].Owner
		case len(lists) == 1:
			got = strings.TrimSpace(fmt.Sprint(lists[0].Owner, " ", lists[0].Limit, " ", lists[0].Label))
		}
		if r.Code != x.status || got != x.want || len(infos)+len(lists) > 1 {
			t.Errorf("%s: %d %q, want %d %q: %s", x.path, r.Code, got, x.status, x.want, r.Body)
		}
		if strings.HasSuffix(x.path, "/content") && r.Code == 200 && r.Body.String() != "content" || strings.HasSuffix(x.path, id) && r.Code == 200 && r.Doc["artifact"] != id {
			t.Errorf("%s: %s", x.path, r.Body)
		}
	}
	other := id[:len(id)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(id, "0")]
	for _, path := range []string{"/" + other, "/" + other + "/content"} {
		if r := m.Do(http.MethodGet, "/api/v1/artifacts"+path, ann, ""); r.Code != 404 {
			t.Errorf("%s: %d %s", path, r.Code, r.Body)
		}
	}
	if r := m.Do(http.MethodGet, "/a/x.y", "", ""); r.Code != 403 || r.Error() != contract.CodeLinkInvalid {
		t.Errorf("a link that no gateway signed: %d %s", r.Code, r.Body)
	}
	if r := m.Do(http.MethodPost, "/api/v1/artifacts/"+id+"/link", ann, ""); r.Code != 503 {
		t.Errorf("a link without a signing key: %d %s", r.Code, r.Body)
	}
	if r := m.Do(http.MethodPost, "/api/v1/artifacts/"+id+"/link", ann, `{"ttl":1}`); r.Code != 400 {
		t.Errorf("a link with an unknown member: %d %s", r.Code, r.Body)
	}
}
