package body

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/binnacle-mesh/binnacle/services/gateway/internal/apierr"
)

func request(raw string) echo.Context {
	return echo.New().NewContext(httptest.NewRequest("POST", "/x", strings.NewReader(raw)), httptest.NewRecorder())
}

// TestRead checks that Read stores the whole body for Raw and counts it until it is
// released. Read must reject a body that has a content encoding other than identity,
// exceeds the caller's budget or, unless it is opaque, is nested too deeply; a rejected
// body does not count.
func TestRead(t *testing.T) {
	deep := strings.Repeat("[", 1<<12)
	for name, c := range map[string]struct {
		body, encoding string
		opaque         bool
		code           string
	}{
		"a document":           {`{"a":1}`, "", false, ""},
		"identity":             {`{"a":1}`, "identity", false, ""},
		"gzip":                 {"x", "gzip", false, "encoding_unsupported"},
		"too deep":             {deep, "", false, "invalid_input"},
		"deep, but opaque":     {deep, "", true, ""},
		"more than a caller's": {`"` + strings.Repeat("x", 5000) + `"`, "", false, "body_budget_exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			var b Budget
			ctx := request(c.body)
			if c.encoding != "" {
				ctx.Request().Header.Set("Content-Encoding", c.encoding)
			}
			release, err := b.Read(ctx, Limits{Caller: 4500}, Owner{"t", "alice"}, c.opaque)
			var e *apierr.Error
			if errors.As(err, &e); (err == nil) != (c.code == "") || e != nil && e.Code != c.code {
				t.Fatalf("%v, want %s", err, c.code)
			}
			if err == nil {
				if n, callers := b.Held(); n != int64(len(c.body)) || callers != 1 || string(Raw(ctx)) != c.body {
					t.Errorf("%d bytes of %d callers are held", n, callers)
				}
				release()
			}
			if n, callers := b.Held(); n != 0 || callers != 0 {
				t.Errorf("%d bytes of %d callers are held after the request", n, callers)
			}
		})
	}
}

// deadlines is a response writer that records the latest read deadline and the number of
// deadlines that were set.
type deadlines struct {
	http.ResponseWriter
	at  time.Time
	set int
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.at = t
	d.set++
	return nil
}

// TestPace checks that the deadline of a client above the minimum rate does not pass,
// even if the client sends pieces that each extend it by less than a tenth of the
// window, and that the deadline of a slower client passes. At most 100 deadlines are
// set, and the last one is at most a window from now.
func TestPace(t *testing.T) {
	for piece, want := range map[int]bool{5: false, 110: true, 200: true, 5000: true} {
		synctest.Test(t, func(t *testing.T) {
			d := &deadlines{}
			limits := Limits{}.orDefault() // the minimum rate is 1024 bytes per second
			p := pace{rc: http.NewResponseController(d), limits: &limits}
			p.begin(time.Now())
			kept := true
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				kept = kept && time.Now().Before(d.at)
				p.came(piece)
			}
			if kept != want || d.set > 100 {
				t.Errorf("%d bytes each 100 ms: kept %t, want %t; %d deadlines were set", piece, kept, want, d.set)
			}
			if most := time.Now().Add(limits.Window); d.at.After(most) {
				t.Errorf("%d bytes each 100 ms: the deadline is %s, more than a window from now", piece, d.at)
			}
		})
	}
}

// TestBudgetOfAll checks that the total size of all callers' bodies is limited.
func TestBudgetOfAll(t *testing.T) {
	var b Budget
	limits := Limits{All: 10}
	release, err := b.Read(request(`"12345"`), limits, Owner{"t", "alice"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(request(`"12345"`), limits, Owner{"t", "bob"}, false); err == nil {
		t.Error("more than all may have is held")
	}
	release()
	if _, err := b.Read(request(`"12345"`), limits, Owner{"t", "bob"}, false); err != nil {
		t.Error(err)
	}
}

// TestBudgetByTenant checks that bodies of principals of the same name in two tenants do
// not count together.
func TestBudgetByTenant(t *testing.T) {
	var b Budget
	limits := Limits{Caller: 5}
	for _, tenant := range []string{"t", "u"} {
		if _, err := b.Read(request(`"123"`), limits, Owner{tenant, "alice"}, false); err != nil {
			t.Error(tenant, err)
		}
	}
	if _, err := b.Read(request(`"123"`), limits, Owner{"t", "alice"}, false); err == nil {
		t.Error("more than a caller may have is held")
	}
}

// TestQuota checks that the bodies of a tenant count together in its quota, and those of
// another tenant do not. A body whose announced length exceeds the rest of the quota is
// not read; the status is 413 if the length exceeds the whole quota, and otherwise 429.
func TestQuota(t *testing.T) {
	var b Budget
	limits := Limits{Tenant: 10}
	release, err := b.Read(request(`"12345"`), limits, Owner{"t", "alice"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body      string
		announced bool
		code      string
		read      bool
	}{
		"announced":                    {`"1234"`, true, "quota_exceeded", false},
		"announced, above the quota":   {`"123456789"`, true, "body_too_large", false},
		"unannounced":                  {`"1234"`, false, "quota_exceeded", true},
		"unannounced, above the quota": {`"123456789"`, false, "quota_exceeded", true},
	} {
		ctx := request(c.body)
		r := ctx.Request()
		reader := strings.NewReader(c.body)
		if r.Body = io.NopCloser(reader); !c.announced {
			r.ContentLength = -1
		}
		_, err := b.Read(ctx, limits, Owner{"t", "bob"}, false)
		var e *apierr.Error
		if !errors.As(err, &e) || e.Code != c.code || (reader.Len() < len(c.body)) != c.read || (e.RetryAfter != "") != (e.Status == 429) {
			t.Errorf("%s: %v, %d of %d bytes are left", name, err, reader.Len(), len(c.body))
		}
	}
	if _, err := b.Read(request(`"1234"`), limits, Owner{"u", "bob"}, false); err != nil {
		t.Error("another tenant:", err)
	}
	release()
	if _, err := b.Read(request(`"1234"`), limits, Owner{"t", "bob"}, false); err != nil {
		t.Error("after the end of the other request:", err)
	}
}

// TestBudgetAmongTenants checks that the bodies of one tenant, however many callers it
// has, leave as much of the gateway's budget free as they use, once another tenant has
// used the gateway.
func TestBudgetAmongTenants(t *testing.T) {
	var b Budget
	limits := Limits{All: 30}
	read := func(tenant, actor string) error {
		_, err := b.Read(request(`"12345678"`), limits, Owner{tenant, actor}, false)
		return err
	}
	release, err := b.Read(request(`"1"`), limits, Owner{"quiet", "x"}, false)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := read("noisy", "a"); err != nil {
		t.Error(err)
	}
	if err := read("noisy", "b"); err == nil {
		t.Error("a tenant holds more than is free")
	}
	if err := read("quiet", "x"); err != nil {
		t.Error("nothing is free for another tenant:", err)
	}
}

// TestJSON checks which documents are accepted, their canonical form, and the members
// that errors name.
func TestJSON(t *testing.T) {
	for _, c := range []struct{ raw, doc, param string }{
		{``, `{}`, ""},
		{`{ "b": 1, "a": [ 2 ] }`, `{"a":[2],"b":1}`, ""},
		{`[1]`, "", apierr.WholeBody},
		{`{"a":`, "", apierr.WholeBody},
		{`{} {}`, "", apierr.WholeBody},
		{`{"a":1,"a":2}`, "", "/a"},
		{`{"x":[0,{"b":1,"b":2}]}`, "", "/x/1/b"},
		{`{"a/b~c":1,"a/b~c":2}`, "", "/a~1b~0c"},
	} {
		ctx := request(c.raw)
		ctx.Set(bodyKey, []byte(c.raw))
		doc, err := JSON(ctx)
		var e *apierr.Error
		if errors.As(err, &e); string(doc) != c.doc || (e == nil) != (c.param == "") || e != nil && e.Param != c.param {
			t.Errorf("%s: %s %+v", c.raw, doc, e)
		}
	}
}

// TestInto checks that errors name unknown members and members of a wrong type by their
// pointers.
func TestInto(t *testing.T) {
	for raw, param := range map[string]string{`{"name":"x","tags":["a"]}`: "", `{"name":7}`: "/name", `{"tags":["a",1]}`: "/tags/1", `{"Name":"x"}`: "/Name"} {
		ctx := request(raw)
		ctx.Set(bodyKey, []byte(raw))
		var v struct {
			Name string   `json:"name"`
			Tags []string `json:"tags"`
		}
		_, err := Into(ctx, &v)
		var e *apierr.Error
		if errors.As(err, &e); (e == nil) != (param == "") || e != nil && e.Param != param {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// TestCallArgs checks that absent args and null become an empty object, that other args
// must be an object, and that CheckName accepts names of at most MaxName bytes.
func TestCallArgs(t *testing.T) {
	for raw, want := range map[string]string{"": "{}", "null": "{}", `{"a":1}`: `{"a":1}`, "[]": "", `"x"`: ""} {
		got, err := CallArgs("/args", []byte(raw))
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %s %v", raw, got, err)
		}
	}
	if CheckName("/kind", strings.Repeat("x", MaxName)) != nil || CheckName("/kind", strings.Repeat("x", MaxName+1)) == nil {
		t.Error("names are not bounded at", MaxName)
	}
}

// TestInBody checks that an error about a call's args names the place of the wrong
// argument in the request, and that an error that names a place already, or has no
// pointer, is not changed.
func TestInBody(t *testing.T) {
	for _, c := range []struct{ path, at, pointer, param, want string }{
		{"/api/v1/packs/:name", "", "/args/text", "", "/text"},
		{"/api/v1/packs/:name", "", "/args", "", apierr.WholeBody},
		{"/api/v1/calls", "/args", "/args/text/0", "", "/args/text/0"},
		{"/api/v1/keys/:id/consent", "", "/args/id", "", "id"},
		{"/api/v1/keys/:id/consent", "", "/args/ids", "", "/ids"},
		{"/api/v1/approvals/:call/votes", "", "/args/call_id", "", "call"},
		{"/api/v1/calls", "/args", "/args/text", "/model", "/model"},
		{"/api/v1/calls", "/args", "", "", ""},
	} {
		ctx := request("")
		ctx.SetPath(c.path)
		ctx.SetParamNames(map[bool]string{true: "call", false: "id"}[strings.Contains(c.path, ":call")])
		if c.at != "" {
			ctx.Set(ArgsKey, c.at)
		}
		var e *apierr.Error
		if errors.As(InBody(ctx, &apierr.Error{Pointer: c.pointer, Param: c.param}), &e); e.Param != c.want {
			t.Errorf("%s %s: %q, want %q", c.path, c.pointer, e.Param, c.want)
		}
	}
}
