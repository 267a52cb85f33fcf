package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// Limits of actions and of their output.
const (
	maxValue  = 64 << 10 // bytes of the text of one element or of the result of a script
	maxText   = 1 << 20  // bytes of all of them
	maxShots  = 32       // screenshots
	maxPixels = 10 << 20 // bytes of all screenshots
	maxHeight = 16384    // pixels of a screenshot of a whole page
	maxKeys   = 256      // bytes of a text that is sent by keys
)

// Result is the result of an action.
type Result struct {
	Action     string          `json:"action"`
	MS         int64           `json:"ms"`
	Extraction string          `json:"extraction,omitempty"` // its name in the extractions
	Value      json.RawMessage `json:"value,omitempty"`      // of a script
	Truncated  bool            `json:"truncated,omitempty"`
	Screenshot *int            `json:"screenshot,omitempty"` // its position in the screenshots
}

// work is the browser of a call with the results of the call's actions.
type work struct {
	t           *tab
	shots       []string // PNG in base64
	pixels      int      // bytes of them
	text        int      // bytes of texts and values
	extractions map[string]string
	assertions  int // that are true
}

// begin starts the browser and checks the selectors, whose keys are their JSON pointers. Unless it
// returns an error, the caller must call end, which ends the browser.
func begin(ctx context.Context, v View, selectors map[string]string) (w *work, end func(), err error) {
	t, end, err := open(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	for at, s := range selectors {
		message, err := run(ctx, t, chromedp.Evaluate[string](`(() => { try { document.querySelector(`+literal(s)+`); return "" } catch (e) { return e.message } })()`))
		if e := t.failure(err, at); e != nil {
			end()
			return nil, nil, e
		}
		if message != "" {
			end()
			return nil, nil, pack.Invalid(at, "not a CSS selector: %s", clip(message, 200))
		}
	}
	return &work{t: t, shots: []string{}, extractions: map[string]string{}}, end, nil
}

// selectorsOf returns the selectors of actions by their JSON pointers.
func selectorsOf(at string, actions []Action) map[string]string {
	all := map[string]string{}
	for i, a := range actions {
		if a.Selector != "" {
			all[fmt.Sprintf("%s/%d/selector", at, i)] = a.Selector
		}
	}
	return all
}

// perform performs the action at a JSON pointer. If the action may begin a navigation, perform waits
// until that is finished.
func (w *work) perform(ctx context.Context, at string, a *Action) (Result, *pack.Error) {
	start := time.Now()
	res := Result{Action: a.Action}
	e := w.act(ctx, at, a, &res)
	if e == nil && !a.isAssertion() && a.Action != "extract" && a.Action != "screenshot" {
		e = w.t.failure(w.t.settle(ctx), at)
	}
	res.MS = time.Since(start).Milliseconds()
	return res, e
}

// act performs an action.
func (w *work) act(ctx context.Context, at string, a *Action, res *Result) *pack.Error {
	if a.isAssertion() {
		return w.assert(ctx, at, a)
	}
	switch a.Action {
	case "navigate":
		return w.t.navigate(ctx, at+"/url", a.URL)
	case "wait":
		return w.wait(ctx, at, a)
	case "screenshot":
		return w.screenshot(ctx, at, a, res)
	case "extract":
		return w.extract(ctx, at, a, res)
	case "execute":
		return w.execute(ctx, at, a, res)
	case "select":
		return w.choose(ctx, at, a)
	}
	return w.input(ctx, at, a)
}

// input performs click, type, press, focus or scroll.
func (w *work) input(ctx context.Context, at string, a *Action) *pack.Error {
	if a.Selector != "" {
		if e := w.visible(ctx, at+"/selector", a); e != nil {
			return e
		}
	}
	var do chromedp.Action[chromedp.Void]
	sel := literal(a.Selector)
	switch a.Action {
	case "click":
		do = chromedp.Click(chromedp.CSS(a.Selector))
	case "type":
		do = chromedp.Steps(script(`{ const e = document.querySelector(`+sel+`); e.focus(); if (e.select) e.select() }`), typing(*a.Value))
	case "press":
		k, _ := key(*a.Value)
		do = chromedp.KeyEvent(k)
		if a.Selector != "" {
			do = chromedp.Steps(script(`document.querySelector(`+sel+`).focus()`), do)
		}
	case "focus":
		do = script(`document.querySelector(` + sel + `).focus()`)
	case "scroll":
		do = script(fmt.Sprintf(`window.scrollBy(%d, %d)`, or(a.X), or(a.Y)))
		if a.Selector != "" {
			do = script(`document.querySelector(` + sel + `).scrollIntoView({block: "center"})`)
		}
	}
	err := w.t.do(ctx, a.limit(), do)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return pointed(pack.Fail(pack.Timeout, "%s did not end within %v", a.Action, a.limit()), at)
	}
	return w.t.failure(err, at)
}

// typing returns an action that replaces the selection in the focused field by a text. A text of more
// than maxKeys bytes is inserted without events of keys, which take a millisecond or more each.
func typing(text string) chromedp.Action[chromedp.Void] {
	switch {
	case text == "":
		return chromedp.KeyEvent(keys["Backspace"])
	case len(text) > maxKeys:
		return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
			return t.Call(ctx, input.InsertText.Method, input.InsertTextParams{Text: text}, nil)
		})
	}
	return chromedp.KeyEvent(text)
}

// wait waits for a time or for a condition.
func (w *work) wait(ctx context.Context, at string, a *Action) *pack.Error {
	switch {
	case a.Selector != "":
		e := w.visible(ctx, at+"/selector", a)
		if e != nil && e.Code == pack.SchemaMismatch {
			e.Code = pack.Timeout
		}
		return e
	case a.Text != "":
		return w.until(ctx, at+"/text", a, pack.Timeout, `document.body && document.body.innerText.includes(`+literal(a.Text)+`)`, "the page does not contain %q", clip(a.Text, 200))
	case a.URL != "":
		return w.until(ctx, at+"/url", a, pack.Timeout, `location.href.includes(`+literal(a.URL)+`)`, "the address of the page does not contain %q", clip(a.URL, 200))
	}
	d := defaultWait
	if a.MS != nil {
		d = time.Duration(*a.MS) * time.Millisecond
	}
	return w.t.failure(pause(ctx, d), at)
}

// assert waits until the condition of an assertion is true, and counts the assertion.
func (w *work) assert(ctx context.Context, at string, a *Action) *pack.Error {
	text := `(document.body ? document.body.innerText : "")`
	first := `document.querySelector(` + literal(a.Selector) + `)`
	if a.Selector != "" {
		text = `(` + first + `?.innerText ?? "")`
	}
	member, condition, message := "text", "", ""
	switch a.Action {
	case "assert_text":
		condition, message = text+`.includes(`+literal(a.Text)+`)`, "the text is missing"
	case "assert_no_text":
		condition, message = `!`+text+`.includes(`+literal(a.Text)+`)`, "the text is still present"
	case "assert_title":
		condition, message = `document.title.includes(`+literal(a.Text)+`)`, "the title does not contain the text"
	case "assert_url":
		member, condition, message = "url", `location.href.includes(`+literal(a.URL)+`)`, "the address of the page does not contain it"
	case "assert_selector":
		member, condition, message = "selector", state(a.Selector)+` === "visible"`, "no element that matches it is visible"
	case "assert_no_selector":
		member, condition, message = "selector", state(a.Selector)+` !== "visible"`, "an element that matches it is visible"
	case "assert_count":
		member, condition, message = "count", fmt.Sprintf(`document.querySelectorAll(%s).length === %d`, literal(a.Selector), *a.Count), "another number of elements matches the selector"
	case "assert_value":
		member, condition, message = "value", `(`+first+`?.value ?? null) === `+literal(*a.Value), "the element has another value, or none matches"
	}
	e := w.until(ctx, at+"/"+member, a, pack.SchemaMismatch, condition, "%s", message)
	if e == nil {
		w.assertions++
	}
	return e
}

// until waits until a condition in JavaScript is true. If it is still false at the action's limit,
// until returns an error with the given code and message.
func (w *work) until(ctx context.Context, pointer string, a *Action, code, condition, format string, args ...any) *pack.Error {
	for end := time.Now().Add(a.limit()); ; {
		ok, err := w.evaluate(ctx, end, condition)
		if ctx.Err() != nil {
			return w.t.failure(ctx.Err(), pointer)
		}
		if ok && err == nil { // an error is ignored, because it may be that of a page which is being replaced
			return nil
		}
		if time.Now().After(end) {
			return pointed(pack.Fail(code, "%s after %v", fmt.Sprintf(format, args...), a.limit()), pointer)
		}
		if err := pause(ctx, tick); err != nil {
			return w.t.failure(err, pointer)
		}
	}
}

// evaluate returns the value of a condition.
func (w *work) evaluate(ctx context.Context, end time.Time, condition string) (bool, error) {
	ectx, cancel := context.WithDeadline(ctx, end.Add(tick))
	defer cancel()
	return run(ectx, w.t, chromedp.Evaluate[bool](`Boolean(`+condition+`)`))
}

// state returns a JavaScript expression whose value is the state of the first element that matches
// the selector: "missing", "hidden" or "visible".
func state(selector string) string {
	return `((e) => { if (!e) return "missing"; const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 && getComputedStyle(e).visibility === "visible" ? "visible" : "hidden" })(document.querySelector(` + literal(selector) + `))`
}

// visible waits until the first element that matches the selector of an action is visible.
func (w *work) visible(ctx context.Context, pointer string, a *Action) *pack.Error {
	e := w.until(ctx, pointer, a, pack.SchemaMismatch, state(a.Selector)+` === "visible"`, "no visible element matches %s", clip(a.Selector, 200))
	if e != nil && e.Code == pack.SchemaMismatch {
		if hidden, err := w.evaluate(ctx, time.Now().Add(time.Second), state(a.Selector)+` === "hidden"`); err == nil && hidden {
			e.Message = fmt.Sprintf("the element that matches %s is hidden after %v", clip(a.Selector, 200), a.limit())
		}
	}
	return e
}

// choose selects an option of a list by its value or label.
func (w *work) choose(ctx context.Context, at string, a *Action) *pack.Error {
	if e := w.visible(ctx, at+"/selector", a); e != nil {
		return e
	}
	found, err := run(ctx, w.t, chromedp.Evaluate[string](`((e, v) => { if (!e || e.tagName !== "SELECT") return "selector"; const o = [...e.options].find(o => o.value === v || o.label === v);
		if (!o) return "value"; e.value = o.value; e.dispatchEvent(new Event("input", {bubbles: true})); e.dispatchEvent(new Event("change", {bubbles: true})); return "" })(document.querySelector(`+literal(a.Selector)+`), `+literal(*a.Value)+`)`))
	switch {
	case err != nil:
		return w.t.failure(err, at)
	case found == "selector":
		return pointed(pack.Fail(pack.SchemaMismatch, "the element is not a list of options"), at+"/selector")
	case found == "value":
		return pointed(pack.Fail(pack.SchemaMismatch, "the list has no option with this value or label"), at+"/value")
	}
	return nil
}

// extract adds the text, the HTML or an attribute of an element to the extractions.
func (w *work) extract(ctx context.Context, at string, a *Action, res *Result) *pack.Error {
	e := w.until(ctx, at+"/selector", a, pack.SchemaMismatch, state(a.Selector)+` !== "missing"`, "no element matches %s", clip(a.Selector, 200))
	if e != nil {
		return e
	}
	value, err := run(ctx, w.t, chromedp.Evaluate[*string](`((e) => `+content(a.Format, a.Attribute)+`)(document.querySelector(`+literal(a.Selector)+`))`))
	if err != nil {
		return w.t.failure(err, at)
	}
	if value == nil {
		return pointed(pack.Fail(pack.SchemaMismatch, "the element has no such attribute"), at+"/attribute")
	}
	res.Extraction = a.Selector
	if a.Name != "" {
		res.Extraction = a.Name
	}
	w.extractions[res.Extraction], res.Truncated = w.bound(*value)
	return nil
}

// content returns an expression of JavaScript for the text, the HTML or an attribute of the element
// e. Its value is null if e is null or has no such attribute.
func content(format, attribute string) string {
	switch format {
	case "html":
		return `(e ? e.outerHTML : null)`
	case "attribute":
		return `(e ? e.getAttribute(` + literal(attribute) + `) : null)`
	}
	return `(e ? (e.innerText ?? e.textContent) : null)`
}

// bound returns a text within the limits of the output, and whether it is cut off.
func (w *work) bound(text string) (string, bool) {
	cut := clip(text, min(maxValue, maxText-w.text))
	w.text += len(cut)
	return cut, len(cut) < len(text)
}

// execute runs a script and adds its value to the result and, under the action's name, if any, to the
// extractions.
func (w *work) execute(ctx context.Context, at string, a *Action, res *Result) *pack.Error {
	start := time.Now()
	ectx, cancel := context.WithTimeout(ctx, a.limit()+time.Second) // for a script that waits
	defer cancel()
	limit := func(p *runtime.EvaluateParams) { p.Timeout = runtime.TimeDelta(a.limit().Milliseconds()) } // after which Chromium ends the script
	raw, err := run(ectx, w.t, chromedp.Evaluate[[]byte](*a.Value, chromedp.EvalAsValue, chromedp.EvalAwaitPromise, limit))
	exception := (*chromedp.ExceptionError)(nil)
	switch {
	case errors.As(err, &exception):
		return pack.Invalid(at+"/value", "the script threw: %s", clip(exception.Error(), 500))
	case err != nil && time.Since(start) >= a.limit() && ctx.Err() == nil:
		return pointed(pack.Fail(pack.Timeout, "the script did not end within %v", a.limit()), at+"/value")
	case err != nil:
		return w.t.failure(err, at)
	}
	if len(raw) == 0 { // undefined
		raw = []byte("null")
	}
	text, cut := w.bound(string(raw))
	res.Value, res.Truncated = json.RawMessage(text), cut
	if cut || !json.Valid(res.Value) {
		res.Value, err = json.Marshal(text)
	}
	if a.Name != "" && err == nil {
		res.Extraction, w.extractions[a.Name] = a.Name, text
	}
	return w.t.failure(err, at)
}

// screenshot takes a screenshot of an element, the viewport or the whole page.
func (w *work) screenshot(ctx context.Context, at string, a *Action, res *Result) *pack.Error {
	take := chromedp.CaptureScreenshot()
	switch {
	case a.Selector != "":
		if e := w.visible(ctx, at+"/selector", a); e != nil {
			return e
		}
		take = chromedp.Screenshot(chromedp.CSS(a.Selector))
	case a.FullPage != nil && *a.FullPage:
		height, err := run(ctx, w.t, chromedp.Evaluate[float64](`document.documentElement.scrollHeight`))
		if err != nil {
			return w.t.failure(err, at)
		}
		if height > maxHeight {
			return pointed(pack.Fail(pack.ResourceExhausted, "the page is higher than %d pixels", maxHeight), at+"/full_page")
		}
		take = chromedp.FullScreenshot(100)
	}
	sctx, cancel := context.WithTimeout(ctx, a.limit())
	defer cancel()
	png, err := run(sctx, w.t, take)
	if sctx.Err() != nil && ctx.Err() == nil {
		return pointed(pack.Fail(pack.Timeout, "the screenshot was not taken within %v", a.limit()), at)
	}
	if err != nil {
		return w.t.failure(err, at)
	}
	return w.addShot(at, png, res)
}

// addShot adds a screenshot to the output, unless it exceeds the limits.
func (w *work) addShot(at string, png []byte, res *Result) *pack.Error {
	if len(w.shots) == maxShots || w.pixels+len(png) > maxPixels {
		return pointed(pack.Fail(pack.ResourceExhausted, "more than %d screenshots, or more than %d bytes of them", maxShots, maxPixels), at)
	}
	w.pixels += len(png)
	res.Screenshot = new(int)
	*res.Screenshot = len(w.shots)
	w.shots = append(w.shots, base64.StdEncoding.EncodeToString(png))
	return nil
}

// where returns the address and the title of the page.
func (w *work) where(ctx context.Context) (address, title string) {
	wctx, cancel := context.WithTimeout(ctx, defaultTime)
	defer cancel()
	address, _ = run(wctx, w.t, chromedp.Location()) // of a page that does not respond, they are empty
	title, _ = run(wctx, w.t, chromedp.Title())
	return address, clip(title, 1000)
}

// script returns an action that runs a script.
func script(js string) chromedp.Action[chromedp.Void] { return chromedp.Evaluate[chromedp.Void](js) }

// literal returns a string as a literal of JavaScript.
func literal(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b) // which escapes the line separators of Unicode
	_ = enc.Encode(s)          // a string has a JSON form
	return strings.TrimSuffix(b.String(), "\n")
}

// or returns the value of an optional number, or 0.
func or(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
