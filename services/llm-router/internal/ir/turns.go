package ir

// Turns reorders a stream so that interleaved tool calls follow one another. Output
// guards, and APIs whose pieces of arguments have no index, require that order.
// Until the arguments of the current tool call are a complete object, or the answer
// ends, the other content of the first choice is queued. The zero value is ready to use.
type Turns struct {
	open    int  // index of the current tool call
	taken   bool // there is a current tool call
	args    object
	waiting []*queue // queues, in the order in which their first events were received
	calls   map[int]*queue
	between *queue // the last queue; nil if that queue belongs to a tool call, or if there is none
}

// queue holds the queued events of one tool call, or the events between two tool calls.
type queue struct{ events []Event }

// Put adds the next event and returns the events that can be sent now, in order. It
// returns none if the event is queued. It reorders the first choice only.
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

// place returns the queue for an event: the queue of its tool call, a new one for a tool call that
// has none, or the one for events between two tool calls.
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

// queue appends a new queue to t.waiting and returns it.
func (t *Turns) queue() *queue {
	if t.calls == nil {
		t.calls = map[int]*queue{}
	}
	q := &queue{}
	t.waiting = append(t.waiting, q)
	return q
}

// turn records that an event is sent: CallBegin makes its call the current one, and CallArgs of the
// current call adds to the arguments of that call.
func (t *Turns) turn(e *Event) {
	switch {
	case e.Kind == CallBegin:
		t.open, t.taken, t.args = e.Index, true, object{text: e.Part.Custom}
	case e.Kind == CallArgs && e.Index == t.open:
		t.args.feed(e.Part.Args)
	}
}

// next returns the queued events that can be sent now. It returns nil if the arguments of the
// current call are not complete.
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

// Rest returns all queued events when the answer has ended, the events of each call
// together, in the order in which the calls began. It resets t.
func (t *Turns) Rest() (out []Event) {
	for _, q := range t.waiting {
		out = append(out, q.events...)
	}
	*t = Turns{}
	return out
}

// object tracks the nesting of a JSON object that is received in pieces, to detect its
// end.
type object struct {
	text           bool // the arguments are plain text, whose end cannot be detected
	begun, str, at bool // the object has begun; inside a string; the next byte of the string is escaped
	depth          int
}

// feed updates the state with the next piece of the document.
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

// whole reports whether the object is complete. It returns false for plain text.
func (o *object) whole() bool { return !o.text && o.begun && o.depth <= 0 && !o.str }
