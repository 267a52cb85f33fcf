package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// picture is the screenshot in docs/how-to/browser.md. TestBrowserPacks compares its own with it,
// and replaces it before if UPDATE_PICTURES is 1.
const picture = "docs/how-to/browser-berths.png"

// harbour starts a site whose page of berths is filled in by its script, and returns the site's URL.
// booked receives the body of each booking. other is the URL of another site, to which pages refer.
func harbour(t *testing.T, other string) (at string, booked *atomic.Value) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root(), "e2e/testdata/browser/berths.html"))
	if err != nil {
		t.Fatal(err)
	}
	booked = &atomic.Value{}
	mux := http.NewServeMux()
	html := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, body)
		})
	}
	html("/berths", string(page))
	html("/harbour", `<title>The harbour</title><body><p>Built in 1890.</p><img src="`+other+`/picture.png"><script>confirm("sure?") || (document.title += ", dismissed")</script>`)
	html("/busy", `<title>Busy</title><body>busy<script>setTimeout(() => { for (;;); }, 300)</script>`)
	mux.HandleFunc("/berths.json", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `[{"name":"North 1","price":"30 a night","metres":9},{"name":"South 4","price":"45 a night","metres":14}]`)
	})
	mux.HandleFunc("POST /book", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		booked.Store(string(body))
		fmt.Fprint(w, "Booked for Ada")
	})
	html("/painted", `<body style='background:#0a0'><script src='/paint.js'></script>`)
	html("/paint.js", `document.body.style.background = '#00a'`)
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other+"/", http.StatusFound) })
	mux.HandleFunc("/secure", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(other, "http:", "https:", 1)+"/", http.StatusFound)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL, booked
}

// TestBrowserPacks shows that browser.screenshot_url, browser.interact, web.scrape_spa and web.test
// work in Chromium, in the image chromium and through the egress-broker; that screenshots are
// artifacts; that errors name the action; and that a host which is not permitted is not reached from
// a page, by a redirect or by a script. The screenshot in the documentation is one of
// browser.interact. The import of the image takes most of the time, so the test runs with one process
// per service only; TestOCRPack runs on one process, too.
func TestBrowserPacks(t *testing.T) {
	archive, lock := built(t, "chromium")
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	at, booked := harbour(t, other.URL)
	host := strings.TrimPrefix(at, "http://")
	images, packs := t.TempDir(), imagePacks(t, lock, "browser.screenshot_url", "browser.interact", "web.scrape_spa", "web.test")
	manifests, err := filepath.Glob(filepath.Join(packs, "*.pack.yaml"))
	if err != nil || len(manifests) != 4 {
		t.Fatal(manifests, err)
	}
	for _, f := range manifests {
		body, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(f, []byte(strings.Replace(string(body), "egress_hosts: [www.example.com]", fmt.Sprintf("egress_hosts: [%q]", host), 1)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m := harness.Processes(t, harness.Options{Packs: packs, Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_EGRESS_NETWORKS=127.0.0.0/8"}})
	cli(t, m, "image", "import", archive, "--images", images)
	cli(t, m, "trust", "sign", write(t, "p0.json", fmt.Sprintf(`{"egress_hosts":[%q]}`, host)))
	cli(t, m, "policy", "activate", filepath.Join(m.Dir, "keys/p0.json"))
	p := packCaller{t, m, "s-browser"}
	screenshotPack(t, p, at, other.URL)
	shot := interactPack(t, p, at, booked)
	comparePicture(t, shot, strings.HasPrefix(lock, harness.Root()))
	interactErrors(t, p, at)
	spaPack(t, p, at)
	testPack(t, p, at)
	hosts := p.must("browser.interact", `{"url":"`+at+`/berths","actions":[{"action":"click","selector":"#next"},{"action":"assert_title","text":"The harbour, dismissed"},
		{"action":"execute","value":"fetch('http://127.0.0.1:9222/json').then(r => r.status, () => 0)"},{"action":"execute","value":"fetch('`+other.URL+`').then(r => r.status, () => 0)"}]}`)
	otherHost := strings.TrimPrefix(other.URL, "http://")
	if refused := fmt.Sprint(hosts["refused_hosts"]); !strings.Contains(refused, otherHost) || !strings.Contains(refused, "127.0.0.1:9222") {
		t.Errorf("refused hosts: %v", hosts)
	}
	if status, _, body := p.call("browser.interact", `{"url":"`+at+`/away","actions":[{"action":"screenshot"}]}`); status != 400 || !strings.Contains(body, otherHost) || !strings.Contains(body, "/args/url") {
		t.Errorf("a redirect to a host that is not permitted: %d %s", status, body)
	}
	if status, _, body := p.call("browser.interact", `{"url":"`+at+`/berths","actions":[{"action":"execute","value":"fetch('https://127.0.0.1:1').then(r => r.status, () => 0)"},{"action":"navigate","url":"`+at+`/secure"}]}`); status != 400 || !strings.Contains(body, "egress to "+otherHost+" failed") || !strings.Contains(body, "/args/actions/1/url") {
		t.Errorf("a redirect to HTTPS of a host that is not permitted, after a request to another one: %d %s", status, body)
	}
	if reached.Load() {
		t.Error("a host that is not permitted was reached")
	}
}

// screenshotPack shows that browser.screenshot_url renders a page with its script, and refuses a
// file. The picture of a host that is not permitted, other, is the browser's error page.
func screenshotPack(t *testing.T, p packCaller, at, other string) {
	out := p.must("browser.screenshot_url", `{"url":"`+at+`/painted","width":400,"height":300}`)
	raw, err := base64.StdEncoding.DecodeString(fmt.Sprint(out["png_b64"]))
	if err != nil {
		t.Fatal(err)
	}
	shot, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if red, green, blue, _ := shot.At(200, 150).RGBA(); red != 0 || green != 0 || blue>>8 != 0xaa || shot.Bounds().Dx() != 400 {
		t.Errorf("color of the page: %x %x %x", red, green, blue)
	}
	p.call("browser.screenshot_url", `{"url":"`+other+`"}`)
	if status, _, body := p.call("browser.screenshot_url", `{"url":"file:///etc/passwd"}`); status != 400 || !strings.Contains(body, "/url") {
		t.Errorf("a file: %d %s", status, body)
	}
}

// interactPack shows that browser.interact books a berth, and returns the first screenshot.
func interactPack(t *testing.T, p packCaller, at string, booked *atomic.Value) []byte {
	out := p.must("browser.interact", `{"url":"`+at+`/berths","width":640,"height":360,"actions":[
		{"action":"wait","selector":".berth"},{"action":"type","selector":"#name","value":"Ada é"},{"action":"select","selector":"#berth","value":"South 4"},{"action":"click","selector":"#book"},
		{"action":"wait","text":"Booked for"},{"action":"extract","selector":"#booked","name":"answer"},{"action":"extract","selector":".berth","format":"attribute","attribute":"data-metres"},
		{"action":"assert_count","selector":".berth","count":2},{"action":"screenshot"},{"action":"screenshot","selector":"#booked"},{"action":"screenshot"},
		{"action":"execute","value":"Promise.resolve({berths: document.querySelectorAll('.berth').length})"},{"action":"click","selector":"#next"},{"action":"wait","url":"/harbour"}]}`)
	if got := fmt.Sprint(booked.Load()); got != `{"name":"Ada é","berth":"south 4"}` {
		t.Errorf("the site received %s", got)
	}
	if x, _ := out["extractions"].(map[string]any); x["answer"] != "Booked for Ada" || x[".berth"] != "9" || out["assertions_passed"] != 1.0 || out["steps_completed"] != 14.0 || out["url"] != at+"/harbour" {
		t.Errorf("%v", out)
	}
	results, _ := json.Marshal(out["results"])
	if n := strings.Count(string(results), `"ms":`); n != 14 || !strings.Contains(string(results), `"value":{"berths":2}`) || !strings.Contains(string(results), `"screenshot":1`) {
		t.Errorf("%s", results)
	}
	ids, _ := out["screenshots"].([]any)
	if len(ids) != 3 || ids[0] != ids[2] || ids[0] == ids[1] {
		t.Fatalf("screenshots: %v", ids)
	}
	if info := strings.ReplaceAll(cli(t, p.m, "artifact", "info", fmt.Sprint(ids[1])), " ", ""); !strings.Contains(info, `"name":"screenshot-2.png"`) || !strings.Contains(info, `"media_type":"image/png"`) || !strings.Contains(info, `"kind":"tool.browser.interact"`) {
		t.Errorf("the second screenshot: %s", info)
	}
	return []byte(cli(t, p.m, "artifact", "get", fmt.Sprint(ids[0])))
}

// comparePicture compares a screenshot with the one in the documentation. The pixels are compared if
// the image has the digest of images.lock, because another version of Chromium may render the page
// differently.
func comparePicture(t *testing.T, shot []byte, pinned bool) {
	t.Helper()
	at := filepath.Join(harness.Root(), picture)
	if os.Getenv("UPDATE_PICTURES") == "1" {
		if err := os.WriteFile(at, shot, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	a, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	b, err := png.Decode(bytes.NewReader(want))
	if err != nil || a.Bounds() != b.Bounds() || a.Bounds().Dx() != 640 || len(want) > 60<<10 {
		t.Fatalf("%s: %v, %v and %v, %d bytes", picture, err, a.Bounds(), b.Bounds(), len(want))
	}
	differ := 0
	for y := range b.Bounds().Dy() {
		for x := range b.Bounds().Dx() {
			if a.At(x, y) != b.At(x, y) {
				differ++
			}
		}
	}
	if differ > 0 && pinned {
		t.Errorf("%d pixels differ from %s: make it with UPDATE_PICTURES=1", differ, picture)
	}
}

// interactErrors shows the errors of browser.interact with their pointers, and that on_failure
// return returns the results before a failure.
func interactErrors(t *testing.T, p packCaller, at string) {
	call := func(actions string) (int, string) {
		status, _, body := p.call("browser.interact", `{"url":"`+at+`/berths","actions":[`+actions+`]}`)
		return status, body
	}
	for _, c := range []struct {
		actions string
		status  int
		want    []string
	}{
		{`{"action":"wait"},{"action":"click","selector":"#absent","timeout_ms":200}`, 409, []string{"schema_mismatch", "/args/actions/1/selector", "#absent", "1 of 2 actions"}},
		{`{"action":"wait","text":"never","timeout_ms":200}`, 504, []string{"timeout", "/args/actions/0/text"}},
		{`{"action":"assert_text","text":"never","timeout_ms":200}`, 409, []string{"schema_mismatch", "/args/actions/0/text"}},
		{`{"action":"click","selector":"##"}`, 400, []string{"invalid_input", "/args/actions/0/selector", "not a CSS selector"}},
		{`{"action":"execute","value":"throw new Error('broken')"}`, 400, []string{"invalid_input", "/args/actions/0/value", "broken"}},
		{`{"action":"execute","value":"for (;;);","timeout_ms":300}`, 504, []string{"timeout", "/args/actions/0/value"}},
		{`{"action":"navigate","url":"file:///etc/passwd"}`, 400, []string{"invalid_input", "/args/actions/0/url"}},
		{`{"action":"click"}`, 400, []string{"invalid_input", "/args/actions/0/selector"}},
		{`{"action":"fly"}`, 400, []string{"SCHEMA_VIOLATION", "/args/actions/0/action"}},
		{`{"action":"wait","seconds":3}`, 400, []string{"ARGS_UNKNOWN_FIELD", "/args/actions/0/seconds"}},
		{``, 400, []string{"SCHEMA_VIOLATION", "/args/actions"}},
	} {
		status, body := call(c.actions)
		for _, want := range c.want {
			if status != c.status || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s, want %d %s", c.actions, status, body, c.status, want)
			}
		}
	}
	out := p.must("browser.interact", `{"url":"`+at+`/berths","on_failure":"return","actions":[{"action":"extract","selector":"header"},{"action":"focus","selector":"#absent","timeout_ms":200},{"action":"screenshot"}]}`)
	if failure, _ := out["failure"].(map[string]any); failure["pointer"] != "/actions/1/selector" || failure["code"] != "schema_mismatch" || out["steps_completed"] != 1.0 || !strings.Contains(fmt.Sprint(out["extractions"]), "Harbour: berths") {
		t.Errorf("results before a failure: %v", out)
	}
}

// spaPack shows that web.scrape_spa returns content that the script of a page has added, and shows
// its errors.
func spaPack(t *testing.T, p packCaller, at string) {
	const fields = `"fields":{"berths":{"selector":".berth .label","all":true},"metres":{"selector":".berth:last-child","format":"attribute","attribute":"data-metres"},"none":{"selector":".none"}}`
	out := p.must("web.scrape_spa", `{"url":"`+at+`/berths","wait_for":".berth",`+fields+`,"formats":["text","markdown","links"]}`)
	data, _ := json.Marshal(out["data"])
	if string(data) != `{"berths":["North 1","South 4"],"metres":"14"}` || fmt.Sprint(out["missing"]) != "[none]" || out["status"] != 200.0 || out["title"] != "Harbour: berths" || out["network_idle"] != true {
		t.Errorf("%s %v", data, out)
	}
	if !strings.Contains(fmt.Sprint(out["text"]), "45 a night") || !strings.Contains(fmt.Sprint(out["markdown"]), "South 4") || fmt.Sprint(out["links"]) != "["+at+"/harbour]" || out["html"] != nil {
		t.Errorf("formats: %v", out)
	}
	for args, want := range map[string][]string{
		`"wait_for":".none","timeout_ms":200,"formats":["text"]`: {"504", "timeout", "/args/wait_for"},
		`"fields":{"a":{"selector":".none"}}`:                    {"409", "schema_mismatch", "none of the fields: a"},
		`"fields":{"a":{"selector":"##"}}`:                       {"400", "invalid_input", "/args/fields/a/selector"},
		`"fields":{"a":{"selector":"p","format":"pdf"}}`:         {"400", "SCHEMA_VIOLATION", "/args/fields/a/format"},
		`"wait_ms":1`: {"400", "invalid_input", "fields: name fields"},
	} {
		status, _, body := p.call("web.scrape_spa", `{"url":"`+at+`/berths",`+args+`}`)
		for _, w := range want {
			if !strings.Contains(fmt.Sprint(status)+body, w) {
				t.Errorf("%s: %d %s, want %s", args, status, body, w)
			}
		}
	}
}

// testPack shows that web.test returns which steps and assertions passed, with a screenshot of a
// failure, and that a failure is not an error of the call, also if the page does not respond.
func testPack(t *testing.T, p packCaller, at string) {
	type output struct {
		Completed   bool
		Reason      string
		Steps       []struct{ Status string }
		Used        int `json:"steps_used"`
		Assertions  []struct{ Passed bool }
		Passed      int    `json:"assertions_passed"`
		Snapshot    string `json:"final_snapshot"`
		Screenshots []string
	}
	run := func(page, args string) (o output, statuses string) {
		t.Helper()
		raw, err := json.Marshal(p.must("web.test", `{"url":"`+at+page+`",`+args+`}`))
		if err == nil {
			err = json.Unmarshal(raw, &o)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range o.Steps {
			statuses += s.Status + " "
		}
		return o, statuses
	}
	const steps = `{"action":"assert_count","selector":".berth","count":2},{"action":"assert_value","selector":"#name","value":"somebody"},{"action":"press","selector":"#name","value":"Enter"},{"action":"assert_text","selector":"#booked","text":"Booked"}`
	if o, s := run("/berths", `"steps":[`+steps+`],"assertions":["Booked for Ada","30 a night"]`); s != "passed passed passed passed " || !o.Completed || o.Reason != "" || o.Passed != 5 || o.Used != 4 || len(o.Screenshots) != 0 || !strings.Contains(o.Snapshot, "North 1") {
		t.Errorf("a test that passes: %s%+v", s, o)
	}
	o, s := run("/berths", `"steps":[{"action":"assert_title","text":"berths"},{"action":"assert_no_selector","selector":"#book","timeout_ms":200},{"action":"click","selector":"#book"}],"assertions":["Harbour","booked"]`)
	if s != "passed failed skipped " || o.Completed || !strings.HasPrefix(o.Reason, "step 1, assert_no_selector: ") || o.Passed != 2 || o.Used != 2 || len(o.Assertions) != 2 || !o.Assertions[0].Passed || o.Assertions[1].Passed || len(o.Screenshots) == 0 {
		t.Fatalf("a test that fails: %s%+v", s, o)
	}
	if _, err := png.Decode(strings.NewReader(cli(t, p.m, "artifact", "get", o.Screenshots[0]))); err != nil {
		t.Errorf("the screenshot of a failure: %v", err)
	}
	if o, s := run("/berths", `"keep_going":true,"steps":[{"action":"assert_text","text":"never","timeout_ms":200},{"action":"assert_url","url":"/berths"}]`); s != "failed passed " || o.Completed {
		t.Errorf("the steps after a failure: %s%+v", s, o)
	}
	if o, s := run("/busy", `"steps":[{"action":"wait","ms":1000},{"action":"assert_text","text":"busy","timeout_ms":500}]`); s != "passed failed " || o.Completed {
		t.Errorf("a page that does not respond: %s%+v", s, o)
	}
	if status, _, body := p.call("web.test", `{"url":"`+at+`/berths"}`); status != 400 || !strings.Contains(body, "steps: name steps") {
		t.Errorf("without steps: %d %s", status, body)
	}
}
