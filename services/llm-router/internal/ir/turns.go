package ir

// Turns puts tool calls that a stream interleaves one after the
// other, as the APIs without an index per piece and the guards of content need
// them. A call's turn ends when its arguments are a whole object, or with the
// answer; until then whatever else came waits. The zero value is ready.
type Turns struct {
	open    int  // index of the call whose turn it is
	taken   bool // there is one
	args    object
	waiting []*queue // in the order they came
	calls   map[int]*queue
	between *queue // the last that waits, if it is no call's
}

// queue is one call's events, or those between two calls.
type queue struct{ events []Event }

// Put takes the next event and returns those whose turn it is, in order; none
// where the event must wait. Only the first choice is put in order.
func (t *Turns) Put(e Event) []Event {
	switch {
	case e.Choice != 0 || e.Kind == Begin || e.Kind == Used:
		return []Event{e}
	case e.Kind == End:
		return append(t.Rest(), e)
	case e.Kind == CallArgs && t.taken && t.open == e.Index:
		t.turn(&e)
		return append([]Event{e}, t.next()...)
	case len(t.waiting) == 0 && (!t.taken || t.args.whole()):
		t.turn(&e)
		return []Event{e}
	}
	q := t.place(&e)
	q.events = append(q.events, e)
	return nil
}

// place is where an event waits that has no turn: with its call, in a new queue
// for a call, or with what came between two calls.
func (t *Turns) place(e *Event) *queue {
	if e.Kind == CallArgs && t.calls[e.Index] != nil {
		return t.calls[e.Index]
	}
	if e.Kind == CallArgs || e.Kind == CallBegin {
		q := t.queue()
		t.calls[e.Index], t.between = q, nil
		return q
	}
	if t.between == nil {
		t.between = t.queue()
	}
	return t.between
}

func (t *Turns) queue() *queue {
	if t.calls == nil {
		t.calls = map[int]*queue{}
	}
	q := &queue{}
	t.waiting = append(t.waiting, q)
	return q
}

// turn notes whose turn it is, and how far its arguments are.
func (t *Turns) turn(e *Event) {
	switch {
	case e.Kind == CallBegin:
		t.open, t.taken, t.args = e.Index, true, object{text: e.Part.Custom}
	case e.Kind == CallArgs && e.Index == t.open:
		t.args.feed(e.Part.Args)
	}
}

// next returns what has waited for the end of a turn, if that is over.
func (t *Turns) next() (out []Event) {
	for len(t.waiting) > 0 && t.args.whole() {
		q := t.waiting[0]
		t.waiting = t.waiting[1:]
		if q == t.between {
			t.between = nil
		}
		for i := range q.events {
			t.turn(&q.events[i])
		}
		if n := q.events[0].Index; t.calls[n] == q {
			delete(t.calls, n)
		}
		out = append(out, q.events...)
	}
	return out
}

// Rest returns everything that waits, in the order in which calls began, for a
// stream that has ended. The Turns is empty afterwards.
func (t *Turns) Rest() (out []Event) {
	for _, q := range t.waiting {
		out = append(out, q.events...)
	}
	*t = Turns{}
	return out
}

// object follows a JSON object as it comes, far enough to know its end.
type object struct {
	text           bool // it is not JSON, and has no end of its own
	begun, str, at bool // at: after a backslash
	depth          int
}

func (o *object) feed(s string) {
	for i := range len(s) {
		switch c := s[i]; {
		case o.str && o.at:
			o.at = false
		case o.str:
			o.at, o.str = c == '\\', c != '"'
		case c == '"':
			o.str = true
		case c == '{' || c == '[':
			o.depth++
		case c == '}' || c == ']':
			o.depth--
		}
		o.begun = o.begun || o.depth > 0
	}
}

func (o *object) whole() bool { return !o.text && o.begun && o.depth <= 0 && !o.str }
