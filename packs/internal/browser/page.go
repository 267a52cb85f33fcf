// Package browser has the packs that control a browser: browser.interact, web.scrape_spa and
// web.test. They start headless Chromium inside the sandbox of the call and control it through a
// pipe, so no port is open. All requests of pages go through the proxy of the call (HTTP_PROXY),
// which permits only the hosts of the decision.
package browser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// program is the executable of Chromium in the image chromium.
const program = "chromium-headless-shell"

// Limits of a call.
const (
	callTime   = 110 * time.Second      // of the start of the browser and all actions; less than timeout_s of the manifests
	loadTime   = 30 * time.Second       // of a page
	settleTime = 100 * time.Millisecond // after an action, in which a navigation may begin
	quietTime  = 500 * time.Millisecond // without requests, after which the network is idle
	tick       = 25 * time.Millisecond  // between two checks of a condition
	maxHosts   = 32                     // hosts that are reported as refused

	maxRequests = 10000 // requests whose addresses are stored
)

// tunnelFailed is in the error of Chromium for a request if the proxy did not open a tunnel with the
// method CONNECT. Chromium does not report the response of the proxy, so the reason is not known.
const tunnelFailed = "ERR_TUNNEL_CONNECTION_FAILED"

// View is the size of the viewport in pixels. 0 means the default: a width of 1280, a height of 800.
type View struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// tab is a browser with one page.
type tab struct {
	ctx context.Context // of chromedp

	mu       sync.Mutex
	main     string                       // id of the main frame
	loading  bool                         // whether the main frame is loading
	status   int                          // of the last response for the main frame
	open     map[network.RequestID]bool   // requests that have not ended
	requests map[network.RequestID]string // addresses of the first maxRequests
	quiet    time.Time                    // time at which the last open request ended, or at which the tab was opened
	refused  map[string]bool              // hosts; see refusedHosts
	document string                       // address of the last request for the main frame, after redirects
	blocked  *pack.Error                  // the error if the last response for the main frame is one of the proxy, or nil
	dialogs  chan page.DialogType
}

// open starts the browser. Unless it returns an error, the caller must call end, which ends the
// browser with all of its processes.
func open(ctx context.Context, v View) (t *tab, end func(), err error) {
	dir, err := os.MkdirTemp("", "profile")
	if err != nil {
		return nil, nil, err
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.IgnoreCertErrors,
		chromedp.UserDataDir(dir), chromedp.WindowSize(cmp.Or(v.Width, 1280), cmp.Or(v.Height, 800)), chromedp.Flag("hide-scrollbars", true), chromedp.Flag("proxy-bypass-list", "<-loopback>"),
		chromedp.ProxyServer(cmp.Or(os.Getenv("HTTP_PROXY"), "http://127.0.0.1:9"))) // without a proxy nothing is reachable
	allocated, free := chromedp.NewExecAllocator(ctx, options...)
	tctx, cancel := chromedp.NewContext(allocated)
	t = &tab{ctx: tctx, open: map[network.RequestID]bool{}, requests: map[network.RequestID]string{}, refused: map[string]bool{}, quiet: time.Now(), dialogs: make(chan page.DialogType, 16)}
	end = func() { cancel(); free(); os.RemoveAll(dir) }
	if err := chromedp.Do(tctx); err != nil {
		end()
		return nil, nil, pack.Fail(pack.HandlerFailed, "Chromium could not be started: %v", err)
	}
	t.main = string(chromedp.FromContext(tctx).Target.TargetID)
	if err := chromedp.Listen(tctx, t.observe); err != nil {
		end()
		return nil, nil, err
	}
	go t.answer()
	return t, end, nil
}

// answer closes the dialogs of the page, which would block it, until the browser ends. It accepts an
// alert and the question whether to leave the page, and dismisses other dialogs.
func (t *tab) answer() {
	for {
		select {
		case kind := <-t.dialogs:
			accept := kind == page.DialogTypeAlert || kind == page.DialogTypeBeforeunload
			_, _ = chromedp.Call(t.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: accept}) // the dialog may be closed already
		case <-t.ctx.Done():
			return
		}
	}
}

// observe records an event of the page.
func (t *tab) observe(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *page.EventFrameStartedNavigating:
		if !strings.Contains(string(e.NavigationType), "ameDocument") { // as in sameDocument, historySameDocument
			t.load(string(e.FrameID), true)
		}
	case *page.EventFrameStartedLoading:
		t.load(string(e.FrameID), true)
	case *page.EventFrameStoppedLoading:
		t.load(string(e.FrameID), false)
	case *page.EventJavascriptDialogOpening:
		select {
		case t.dialogs <- e.Type:
		default: // more dialogs at a time than a page can open
		}
	default:
		t.transfer(event)
	}
}

// load records whether the main frame loads; it ignores other frames. The caller holds mu.
func (t *tab) load(frame string, loading bool) {
	if frame == t.main {
		t.loading = loading
	}
}

// transfer records an event of the network. The caller holds mu.
func (t *tab) transfer(event any) {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		t.sent(e)
	case *network.EventResponseReceived:
		t.received(e)
	case *network.EventResponseReceivedExtraInfo: // also for a response that the page may not read
		t.answered(t.requests[e.RequestID], e.Headers)
	case *network.EventLoadingFinished:
		t.ended(e.RequestID)
	case *network.EventLoadingFailed:
		if strings.Contains(e.ErrorText, tunnelFailed) {
			t.refuse(t.requests[e.RequestID])
		}
		t.ended(e.RequestID)
	}
}

// sent records a request, or the next request of one that is redirected. The caller holds mu.
func (t *tab) sent(e *network.EventRequestWillBeSent) {
	t.open[e.RequestID] = true
	if _, again := t.requests[e.RequestID]; again || len(t.requests) < maxRequests {
		t.requests[e.RequestID] = e.Request.URL
	}
	if e.Type == network.ResourceTypeDocument && string(e.FrameID) == t.main {
		t.document, t.blocked = e.Request.URL, nil
	}
}

// received records a response. The caller holds mu.
func (t *tab) received(e *network.EventResponseReceived) {
	why, own := t.answered(e.Response.URL, e.Response.Headers)
	if e.Type == network.ResourceTypeDocument && string(e.FrameID) == t.main {
		t.status, t.blocked = int(e.Response.Status), nil
		if own {
			t.blocked = pack.Refused(hostOf(e.Response.URL), why)
		}
	}
	if e.Type == network.ResourceTypeEventSource || e.Type == network.ResourceTypeWebSocket {
		t.ended(e.RequestID) // it stays open, and must not keep the network from being idle
	}
}

// answered reports whether a response with these headers is one of the proxy and not of the host of
// the address, and returns the proxy's reason. If the reason is that the request is not permitted,
// answered records the host. The caller holds mu.
func (t *tab) answered(address string, headers network.Headers) (why string, own bool) {
	for name, v := range headers {
		if !strings.EqualFold(name, "Proxy-Status") {
			continue
		}
		if why, own = pack.RefusalReason(fmt.Sprint(v)); own && pack.Denied(why) {
			t.refuse(address)
		}
	}
	return why, own
}

// refuse records the host of an address, unless maxHosts hosts are recorded. The caller holds mu.
func (t *tab) refuse(address string) {
	if host := hostOf(address); host != "" && len(t.refused) < maxHosts {
		t.refused[host] = true
	}
}

// hostOf returns the host of an address, with the port if the address has one, or "".
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

// ended records the end of a request. The caller holds mu.
func (t *tab) ended(id network.RequestID) {
	delete(t.open, id)
	if len(t.open) == 0 {
		t.quiet = time.Now()
	}
}

// refusedHosts returns the hosts to which a request was not permitted, and those to which the proxy
// opened no tunnel for HTTPS. The reason for the latter is not known: the proxy also opens none to a
// host with the mode passthrough or tcp that cannot be reached.
func (t *tab) refusedHosts() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, slices.Sorted(maps.Keys(t.refused))...)
}

// refusal returns the error for a page whose last request, which may be one of a redirect, the proxy
// refused or could not send, or nil for any other page. err is the error of the navigation.
func (t *tab) refusal(err error) *pack.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if load := (*chromedp.LoadError)(nil); errors.As(err, &load) && strings.Contains(load.ErrorText, tunnelFailed) {
		return pack.NoTunnel(hostOf(t.document))
	}
	return t.blocked
}

// navigate loads an address, and waits until the page is loaded. pointer is the JSON pointer of the
// address in the arguments.
func (t *tab) navigate(ctx context.Context, pointer, address string) *pack.Error {
	t.mu.Lock()
	t.document, t.blocked = address, nil // there is no request if only the fragment differs
	t.mu.Unlock()
	err := t.do(ctx, loadTime, chromedp.Navigate(address))
	if e := t.refusal(err); e != nil {
		return pointed(e, pointer)
	}
	if load := (*chromedp.LoadError)(nil); errors.As(err, &load) {
		return pointed(pack.Fail(pack.HandlerFailed, "the page could not be loaded: %s", load.ErrorText), pointer)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return pointed(pack.Fail(pack.Timeout, "the page was not loaded within %v", loadTime), pointer)
	}
	return t.failure(err, pointer)
}

// settle waits until the navigation that the last action began, if any, is finished, but at most
// loadTime. It returns an error only if ctx ends.
func (t *tab) settle(ctx context.Context) error {
	begin := time.Now()
	for time.Since(begin) < loadTime {
		t.mu.Lock()
		loading := t.loading
		t.mu.Unlock()
		if !loading && time.Since(begin) >= settleTime {
			return nil
		}
		if err := pause(ctx, tick); err != nil {
			return err
		}
	}
	return nil
}

// idle waits until the page is loaded and there was no request for quietTime, and reports whether
// that happened within the limit. It returns an error only if ctx ends.
func (t *tab) idle(ctx context.Context, limit time.Duration) (bool, error) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		t.mu.Lock()
		idle := len(t.open) == 0 && time.Since(t.quiet) >= quietTime && !t.loading
		t.mu.Unlock()
		if idle {
			return true, nil
		}
		if err := pause(ctx, tick); err != nil {
			return false, err
		}
	}
	return false, nil
}

// do runs an action with a time limit.
func (t *tab) do(ctx context.Context, limit time.Duration, a chromedp.Action[chromedp.Void]) error {
	tctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := chromedp.Do(tctx, a)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// run runs an action, at most until ctx ends, and returns its value.
func run[T any](ctx context.Context, t *tab, a chromedp.Action[T]) (T, error) {
	tctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	v, err := chromedp.Run(tctx, a)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return v, err
}

// failure returns the error for an error of the browser, or nil for nil.
func (t *tab) failure(err error, pointer string) *pack.Error {
	exception := (*chromedp.ExceptionError)(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled) && t.ctx.Err() == nil:
		return pointed(pack.Fail(pack.Timeout, "the actions did not end within %v", callTime), pointer)
	case errors.As(err, &exception):
		return pointed(pack.Fail(pack.HandlerFailed, "the script threw: %s", clip(exception.Error(), 500)), pointer)
	}
	return pointed(pack.Fail(pack.HandlerFailed, "Chromium: %s", clip(err.Error(), 500)), pointer)
}

// pointed returns e with a JSON pointer.
func pointed(e *pack.Error, pointer string) *pack.Error {
	e.Pointer = pointer
	return e
}

// pause waits for a time. If ctx ends before, it returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// clip returns the first bytes of a text, at most limit, as UTF-8.
func clip(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "")
}

// checkAddress returns an error if an address is not an HTTP or HTTPS URL of a host.
func checkAddress(pointer, address string) *pack.Error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return pack.Invalid(pointer, "want an HTTP or HTTPS address")
	}
	return nil
}
