package browser

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"go.yaml.in/yaml/v3"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// ref returns a pointer to a value.
func ref[T any](v T) *T { return &v }

// TestCheck checks that actions with missing, superfluous, contradictory or invalid members are
// refused, with the JSON pointers of the errors, and that valid actions are accepted.
func TestCheck(t *testing.T) {
	for want, a := range map[string]Action{
		"/a/0/action":    {Action: "fly"},
		"/a/0/selector":  {Action: "click"},
		"/a/0/value":     {Action: "type", Selector: "a"},
		"/a/0/url":       {Action: "navigate", URL: "file:///etc/passwd"},
		"/a/0/text":      {Action: "focus", Selector: "a", Text: "x"},
		"/a/0":           {Action: "wait", Text: "x", MS: ref(1)},
		"/a/0/attribute": {Action: "extract", Selector: "a", Format: "attribute"},
		"/a/0/count":     {Action: "assert_count", Selector: "a"},
	} {
		if e := checkAll("/a", []Action{a}); e == nil || e.Pointer != want || e.Code != pack.InvalidInput {
			t.Errorf("%s: %+v", want, e)
		}
	}
	for _, a := range []Action{{Action: "press", Value: ref("F13")}, {Action: "press", Value: ref("")}, {Action: "scroll"}, {Action: "screenshot", Selector: "a", FullPage: ref(true)}, {Action: "scroll", Selector: "a", Y: ref(1)}, {Action: "extract", Selector: "a", Attribute: "href"}} {
		if e := checkAll("/a", []Action{{Action: "wait"}, a}); e == nil || !strings.HasPrefix(e.Pointer, "/a/1") {
			t.Errorf("%+v is accepted: %+v", a, e)
		}
	}
	valid := []Action{{Action: "wait"}, {Action: "wait", MS: ref(0)}, {Action: "wait", Selector: "a", TimeoutMS: 9}, {Action: "type", Selector: "a", Value: ref("")}, {Action: "press", Value: ref("Enter")}, {Action: "press", Value: ref("é")},
		{Action: "scroll", Y: ref(-5)}, {Action: "screenshot"}, {Action: "extract", Selector: "a", Format: "attribute", Attribute: "href", Name: "link"}, {Action: "assert_count", Selector: "a", Count: ref(0)}, {Action: "navigate", URL: "https://a.test/x"}}
	if e := checkAll("/a", valid); e != nil {
		t.Errorf("%+v", e)
	}
}

// TestManifests checks that the schemas of browser.interact and web.test have the names of actions
// and members of the program; that only timeout_ms has a default, because the mesh adds a member with
// a default to every action; and that callTime is shorter than the time limit of each manifest.
func TestManifests(t *testing.T) {
	type items struct {
		Properties map[string]struct {
			Enum    []string
			Default any
		}
	}
	var all []items
	for name, member := range map[string]string{"browser.interact": "actions", "web.test": "steps", "web.scrape_spa": ""} {
		body, err := os.ReadFile(filepath.Join("../../images", name+".pack.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Timeout int `yaml:"timeout_s"`
			Input   struct {
				Properties map[string]struct{ Items yaml.Node }
			} `yaml:"input_schema"`
		}
		if err := yaml.Unmarshal(body, &m); err != nil {
			t.Fatal(err)
		}
		if d := time.Duration(m.Timeout) * time.Second; d < callTime+5*time.Second {
			t.Errorf("%s ends after %v, the program after %v", name, d, callTime)
		}
		if member == "" {
			continue
		}
		var of items
		node := m.Input.Properties[member].Items
		if err := node.Decode(&of); err != nil {
			t.Fatal(name, err)
		}
		for member, p := range of.Properties {
			if p.Default != nil && member != "timeout_ms" {
				t.Errorf("%s: the mesh adds %s to every action", name, member)
			}
		}
		all = append(all, of)
	}
	if got, want := slices.Sorted(slices.Values(all[0].Properties["action"].Enum)), slices.Sorted(maps.Keys(rules)); !slices.Equal(got, want) {
		t.Errorf("actions of the schema: %v, want %v", got, want)
	}
	for i, of := range all {
		used := map[string]bool{"action": true, "timeout_ms": true}
		for _, r := range rules {
			for _, m := range append(slices.Clone(r.needs), r.may...) {
				used[m] = true
			}
		}
		if got, want := slices.Sorted(maps.Keys(of.Properties)), slices.Sorted(maps.Keys(used)); !slices.Equal(got, want) || !slices.Equal(of.Properties["action"].Enum, all[0].Properties["action"].Enum) {
			t.Errorf("schema %d: members %v, want %v", i, got, want)
		}
	}
}

// TestWithoutBrowser checks that the packs return a typed error if Chromium is missing, and that an
// input with an error other than that of a selector is refused before Chromium is started.
func TestWithoutBrowser(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	const at = "http://a.test"
	interact := func(in InteractInput) error { _, err := Interact(t.Context(), in); return err }
	scrape := func(in SPAInput) error { _, err := ScrapeSPA(t.Context(), in); return err }
	test := func(in TestInput) error { _, err := Test(t.Context(), in); return err }
	for _, c := range []struct {
		code, pointer string
		err           error
	}{
		{pack.HandlerFailed, "", interact(InteractInput{URL: at, Actions: []Action{{Action: "screenshot"}}})},
		{pack.HandlerFailed, "", scrape(SPAInput{URL: at, Formats: []string{"text"}})},
		{pack.HandlerFailed, "", test(TestInput{URL: at, Assertions: []string{"x"}})},
		{pack.InvalidInput, "/url", interact(InteractInput{URL: "file:///etc/passwd"})},
		{pack.InvalidInput, "/actions/0/action", interact(InteractInput{URL: at, Actions: []Action{{}}})},
		{pack.InvalidInput, "/fields", scrape(SPAInput{URL: at})},
		{pack.InvalidInput, "/fields/a~1b/attribute", scrape(SPAInput{URL: at, Fields: map[string]Field{"a/b": {Selector: "a", Format: "attribute"}}})},
		{pack.InvalidInput, "/steps", test(TestInput{URL: at})},
		{pack.InvalidInput, "/steps/1/url", test(TestInput{URL: at, Steps: []Action{{Action: "wait"}, {Action: "navigate", URL: "x"}}})},
	} {
		var e *pack.Error
		if !errors.As(c.err, &e) || e.Code != c.code || e.Pointer != c.pointer {
			t.Errorf("want %s %s: %v", c.code, c.pointer, c.err)
		}
	}
}

// TestObserve checks which events mean that the page is loading, that the network is busy and that
// the proxy refused a request to a host.
func TestObserve(t *testing.T) {
	tab := &tab{main: "m", open: map[network.RequestID]bool{}, requests: map[network.RequestID]string{}, refused: map[string]bool{}, dialogs: make(chan page.DialogType, 1)}
	tab.observe(&page.EventFrameStartedLoading{FrameID: "other"})
	if tab.loading {
		t.Error("another frame makes the page load")
	}
	tab.observe(&page.EventFrameStartedNavigating{FrameID: "m", NavigationType: "sameDocument"})
	if tab.loading {
		t.Error("a navigation within the document makes the page load")
	}
	tab.observe(&page.EventFrameStartedNavigating{FrameID: "m", NavigationType: "differentDocument"})
	tab.observe(&page.EventFrameStoppedLoading{FrameID: "other"})
	if !tab.loading {
		t.Error("a navigation does not make the page load")
	}
	tab.observe(&page.EventFrameStoppedLoading{FrameID: "m"})
	if tab.loading {
		t.Error("the page still loads")
	}
	for id, u := range map[network.RequestID]string{"1": "http://a.test/", "2": "https://b.test/x", "3": "http://c.test/", "4": "https://d.test/", "5": "http://e.test/", "6": "http://f.test/"} {
		tab.observe(&network.EventRequestWillBeSent{RequestID: id, Request: &network.Request{URL: u}})
	}
	tab.observe(&network.EventResponseReceived{RequestID: "1", Type: network.ResourceTypeDocument, FrameID: "m", Response: &network.Response{URL: "http://a.test/", Status: 404}})
	tab.observe(&network.EventResponseReceived{RequestID: "3", Type: network.ResourceTypeDocument, FrameID: "sub", Response: &network.Response{URL: "http://c.test/", Status: 403, Headers: network.Headers{"proxy-status": `egress-broker; error=x; details="host_denied"`}}})
	tab.observe(&network.EventResponseReceived{RequestID: "6", Type: network.ResourceTypeImage, FrameID: "m", Response: &network.Response{URL: "http://f.test/", Status: 502, Headers: network.Headers{"Proxy-Status": `egress-broker; error=x; details="resolve_failed"`}}})
	for _, id := range []network.RequestID{"1", "3", "6"} {
		tab.observe(&network.EventLoadingFinished{RequestID: id})
	}
	tab.observe(&network.EventLoadingFailed{RequestID: "2", ErrorText: "net::ERR_TUNNEL_CONNECTION_FAILED"})
	if idle, err := tab.idle(t.Context(), time.Millisecond); idle || err != nil || tab.status != 404 {
		t.Errorf("with a request: idle %v %v, status %d", idle, err, tab.status)
	}
	tab.observe(&network.EventLoadingFailed{RequestID: "5", ErrorText: "net::ERR_FAILED"})
	tab.observe(&network.EventResponseReceivedExtraInfo{RequestID: "5", Headers: network.Headers{"Proxy-Status": `egress-broker; error=x; details="host_denied"`}})
	tab.observe(&network.EventLoadingFailed{RequestID: "4", ErrorText: "net::ERR_NAME_NOT_RESOLVED"})
	tab.quiet = time.Now().Add(-quietTime)
	if idle, err := tab.idle(t.Context(), time.Second); !idle || err != nil {
		t.Errorf("without a request: idle %v %v", idle, err)
	}
	if got := tab.refusedHosts(); !slices.Equal(got, []string{"b.test", "c.test", "e.test"}) {
		t.Errorf("refused hosts: %v", got)
	}
}

// TestPageRefused checks the error for a page that the proxy refused or could not send, at its own
// address or after a redirect, and that a page which was loaded has none although other requests, also
// to its host, were refused before and since.
func TestPageRefused(t *testing.T) {
	const denied = `egress-broker; error=x; details="host_denied"`
	tunnel := &chromedp.LoadError{ErrorText: "net::ERR_TUNNEL_CONNECTION_FAILED"}
	request := func(id, frame, url string) any {
		return &network.EventRequestWillBeSent{RequestID: network.RequestID(id), FrameID: cdp.FrameID(frame), Type: network.ResourceTypeDocument, Request: &network.Request{URL: url}}
	}
	response := func(id, frame, url, status string) any {
		return &network.EventResponseReceived{RequestID: network.RequestID(id), FrameID: cdp.FrameID(frame), Type: network.ResourceTypeDocument, Response: &network.Response{URL: url, Headers: network.Headers{"Proxy-Status": status}}}
	}
	failed := func(id string) any {
		return &network.EventLoadingFailed{RequestID: network.RequestID(id), ErrorText: tunnel.ErrorText}
	}
	before := []any{request("1", "sub", "http://a.test/ad"), response("1", "sub", "http://a.test/ad", denied), request("2", "sub", "https://b.test/"), failed("2")}
	for name, c := range map[string]struct {
		events  []any
		err     error
		message string
	}{
		"loaded":                      {[]any{request("3", "m", "http://a.test/"), response("3", "m", "http://a.test/", "")}, nil, ""},
		"loaded after a refused page": {[]any{request("3", "m", "http://a.test/"), response("3", "m", "http://a.test/", denied), request("4", "m", "http://a.test/")}, nil, ""},
		"denied":                      {[]any{request("3", "m", "http://d.test/"), response("3", "m", "http://d.test/", denied)}, nil, "egress to d.test was refused: host_denied"},
		"not reachable":               {[]any{request("3", "m", "http://d.test/"), response("3", "m", "http://d.test/", `egress-broker; error=x; details="connect_failed"`)}, nil, "egress to d.test failed: connect_failed"},
		"redirected":                  {[]any{request("3", "m", "https://a.test/"), request("3", "m", "https://d.test/"), failed("3")}, tunnel, "egress to d.test failed: the proxy did not open a tunnel"},
		"another error":               {[]any{request("3", "m", "https://b.test/")}, &chromedp.LoadError{ErrorText: "net::ERR_EMPTY_RESPONSE"}, ""},
	} {
		tab := &tab{main: "m", open: map[network.RequestID]bool{}, requests: map[network.RequestID]string{}, refused: map[string]bool{}}
		for _, e := range slices.Concat(before, c.events) {
			tab.observe(e)
		}
		message := ""
		if e := tab.refusal(c.err); e != nil {
			message = e.Message
		}
		if message != c.message {
			t.Errorf("%s: %q, want %q", name, message, c.message)
		}
	}
}

// TestShots checks that a screenshot that exceeds the limits does not count for later ones.
func TestShots(t *testing.T) {
	var w work
	var first, large, second Result
	if e := w.addShot("/a/0", []byte("png"), &first); e != nil || *first.Screenshot != 0 {
		t.Error(e)
	}
	if e := w.addShot("/a/1", make([]byte, maxPixels-2), &large); e == nil || e.Code != pack.ResourceExhausted || e.Pointer != "/a/1" || large.Screenshot != nil {
		t.Errorf("a screenshot above the limit: %+v", e)
	}
	if e := w.addShot("/a/2", make([]byte, maxPixels-3), &second); e != nil || *second.Screenshot != 1 || len(w.shots) != 2 {
		t.Errorf("the screenshot after it: %+v", e)
	}
	w = work{shots: make([]string, maxShots)}
	if e := w.addShot("/a/3", []byte("png"), &Result{}); e == nil || e.Code != pack.ResourceExhausted {
		t.Errorf("more than %d screenshots: %+v", maxShots, e)
	}
}

// TestFormats checks that Markdown which the conversion has truncated, and other formats above the
// limit, are reported as truncated.
func TestFormats(t *testing.T) {
	for size, truncated := range map[int]bool{100: false, maxText + 1: true} {
		page, err := web.Rendered("<body><p>"+strings.Repeat("tide ", size/5+1)+"</p></body>", "http://a.test/")
		if err != nil {
			t.Fatal(err)
		}
		var out SPAOutput
		if out.addMarkdown(&page); out.Truncated != truncated || !strings.HasPrefix(*out.Markdown, "tide tide") || len(*out.Markdown) > maxText {
			t.Errorf("Markdown of %d bytes: truncated %v, %d bytes", size, out.Truncated, len(*out.Markdown))
		}
	}
	for size, truncated := range map[int]bool{maxText: false, maxText + 1: true} {
		var out SPAOutput
		if text := out.limited(strings.Repeat("x", size)); out.Truncated != truncated || len(*text) != maxText {
			t.Errorf("text of %d bytes: truncated %v, %d bytes", size, out.Truncated, len(*text))
		}
	}
}

// TestFailure checks the errors for errors of the browser.
func TestFailure(t *testing.T) {
	tab := &tab{ctx: context.Background()}
	if e := tab.failure(nil, "/x"); e != nil {
		t.Error(e)
	}
	for want, err := range map[string]error{pack.Timeout: context.DeadlineExceeded, pack.HandlerFailed: &chromedp.LoadError{ErrorText: "net::ERR_FAILED"}} {
		if e := tab.failure(err, "/x"); e.Code != want || e.Pointer != "/x" {
			t.Errorf("%v: %+v", err, e)
		}
	}
}

// TestText checks the limits of texts, the literals of JavaScript, and the expression for an
// attribute.
func TestText(t *testing.T) {
	w := &work{text: maxText - 3}
	if s, cut := w.bound("abécd"); s != "ab" || !cut {
		t.Errorf("%q %v", s, cut)
	}
	if s, cut := w.bound("z"); s != "z" || cut {
		t.Errorf("%q %v", s, cut)
	}
	if s, cut := w.bound("z"); s != "" || !cut {
		t.Errorf("%q %v", s, cut)
	}
	if got := literal("a\"b\\\n\u2028</script>"); got != `"a\"b\\\n\u2028\u003c/script\u003e"` {
		t.Error(got)
	}
	if got := content("attribute", `x")`); !strings.Contains(got, `getAttribute("x\")")`) {
		t.Error(got)
	}
}
