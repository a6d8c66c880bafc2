package winch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestPausesAreDrawnFromARangeThatDoubles(t *testing.T) {
	bound := firstPause
	var pauses backoff
	seen := map[time.Duration]bool{}
	for n := 0; n < 12; n++ {
		pause := pauses.next()
		if pause < 0 || pause >= bound {
			t.Errorf("pause %d is %v, not below %v", n, pause, bound)
		}
		seen[pause] = true
		if bound *= 2; bound > greatestPause {
			bound = greatestPause
		}
	}
	if len(seen) < 11 {
		t.Errorf("only %d of 12 pauses differ", len(seen))
	}
}

func TestIDsAreRandomUUIDs(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	if one, other := newID(), newID(); one == other || !form.MatchString(one) {
		t.Error(one, other)
	}
}

func TestDurationsAreNeverShorterThanGiven(t *testing.T) {
	for given, text := range map[time.Duration]string{
		0: "", -time.Second: "", time.Second: "1000ms", time.Nanosecond: "1ms", 1500 * time.Microsecond: "2ms",
	} {
		if found := duration(given); found != text {
			t.Errorf("%v is %q, not %q", given, found, text)
		}
	}
}

type picture struct {
	Name   string            `json:"name"`
	Width  int               `json:"width,omitempty"`
	Big    uint              `json:"big"`
	Scale  float64           `json:"scale"`
	Tags   []string          `json:"tags"`
	More   map[string]bool   `json:"more,omitempty"`
	At     time.Time         `json:"at"`
	Next   *picture          `json:"next,omitempty"`
	Any    any               `json:"any,omitempty"`
	Data   []byte            `json:"data,omitempty"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Number int               `json:"number,string,omitempty"`
	Hidden map[string]string `json:"-"`
	Plain  bool
	own    string
}

func TestASchemaIsThatOfTheType(t *testing.T) {
	_ = picture{}.own
	text, err := json.Marshal(SchemaOf[picture]())
	if err != nil {
		t.Fatal(err)
	}
	var found, wanted any
	const schema = `{"type": "object", "required": ["name", "big", "scale", "tags", "at", "Plain"], "properties": {
		"name": {"type": "string"}, "width": {"type": "integer"}, "big": {"type": "integer", "minimum": 0},
		"scale": {"type": "number"}, "tags": {"type": ["array", "null"], "items": {"type": "string"}},
		"more": {"type": ["object", "null"], "additionalProperties": {"type": "boolean"}},
		"at": {"type": "string", "format": "date-time"}, "next": {}, "any": {}, "raw": {}, "number": {},
		"data": {"type": ["string", "null"]}, "Plain": {"type": "boolean"}}}`
	for text, into := range map[string]*any{string(text): &found, schema: &wanted} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(found, wanted) {
		t.Errorf("%s", text)
	}
}

type base struct {
	ID int `json:"id"`
}

func TestASchemaHasTheFieldsOfAnEmbeddedStruct(t *testing.T) {
	type order struct {
		base
		Name string `json:"name"`
	}
	found := SchemaOf[order]()
	if !reflect.DeepEqual(found["required"], []string{"id", "name"}) {
		t.Error(found)
	}
}

func TestAJobIsWrittenAsTheAPITakesIt(t *testing.T) {
	at := time.Date(2026, 11, 19, 6, 0, 0, 0, time.FixedZone("", 3600))
	text, err := json.Marshal(NewJob{Task: "a", Delay: time.Minute, RunAt: at, Tags: []string{"x"}, Priority: -1})
	if err != nil {
		t.Fatal(err)
	}
	const wanted = `{"args":{},"delay":"60000ms","priority":-1,"run_at":"2026-11-19T05:00:00Z","tags":["x"],"task":"a"}`
	if string(text) != wanted {
		t.Errorf("%s", text)
	}
}

type named struct{}

func (named) Error() string     { return "x" }
func (named) ErrorName() string { return "CardRefused" }

func TestErrorsHaveNames(t *testing.T) {
	for _, one := range []struct {
		err  error
		name string
	}{
		{errors.New("x"), "error"},
		{fmt.Errorf("y: %w", errors.New("x")), "error"},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, "PathError"},
		{fmt.Errorf("y: %w", named{}), "CardRefused"},
	} {
		if found := nameOf(one.err); found != one.name {
			t.Errorf("%v is %q, not %q", one.err, found, one.name)
		}
	}
	chain := chainOf(fmt.Errorf("load: %w", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}))
	if !strings.Contains(chain, "wraps *fs.PathError: open x") {
		t.Error(chain)
	}
}

func TestATraceIsKeptUnlessTheJobNamesOne(t *testing.T) {
	ctx := WithTrace(context.Background(), Trace{Parent: "00-a-b-01", State: "v=1"})
	found := traced(map[string]string{"x": "1"}, TraceFrom(ctx))
	wanted := map[string]string{"x": "1", "traceparent": "00-a-b-01", "tracestate": "v=1"}
	if !reflect.DeepEqual(found, wanted) {
		t.Error(found)
	}
	own := map[string]string{"traceparent": "00-c-d-01"}
	if found := traced(own, TraceFrom(ctx)); !reflect.DeepEqual(found, own) {
		t.Error(found)
	}
	if found := traced(nil, TraceFrom(context.Background())); found != nil {
		t.Error(found)
	}
}

func TestAWorkerThatCannotBeginSaysWhy(t *testing.T) {
	client, err := New("http://127.0.0.1:1", Options{})
	if err != nil {
		t.Fatal(err)
	}
	task := Task[struct{}, any]{Name: "a"}
	handler := func(context.Context, *Job, struct{}) (any, error) { return nil, nil }
	worker := client.NewWorker(WorkerOptions{Queues: []string{"mail"}})
	if err := worker.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "no task") {
		t.Error(err)
	}
	worker = client.NewWorker(WorkerOptions{})
	task.Handle(worker, handler)
	if err := worker.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "no queue") {
		t.Error(err)
	}
	if err := worker.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "runs once") {
		t.Error(err)
	}
	defer func() {
		if cause := recover(); cause == nil {
			t.Error("a task had two handlers")
		}
	}()
	task.Handle(worker, handler)
}

func TestAddressesThatCannotBe(t *testing.T) {
	for _, one := range []string{"", "jobs.example.com", "ftp://a", "https://", "https://u:p@a", "https://a?x=1", "https://a#x"} {
		if _, err := New(one, Options{Token: "winch_secret"}); err == nil {
			t.Errorf("%q was accepted", one)
		}
	}
	if _, err := New("https://a", Options{Token: "a\r\nb"}); err == nil || strings.Contains(err.Error(), "a\r") {
		t.Error(err)
	}
}
