package winch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestAnOrderIsAnsweredOnce has a stop come with one heartbeat, and its answer go with a slow one: the last
// heartbeat of the worker waits for that.
func TestAnOrderIsAnsweredOnce(t *testing.T) {
	var beats, answered atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Answers []orderAnswer }
		json.NewDecoder(r.Body).Decode(&body)
		switch {
		case strings.HasSuffix(r.URL.Path, "/sessions"):
			w.WriteHeader(201)
			fmt.Fprint(w, `{"beat_seconds": 0.2}`)
		case strings.HasSuffix(r.URL.Path, "/heartbeat"):
			answered.Add(int32(len(body.Answers)))
			if beats.Add(1) == 1 {
				fmt.Fprint(w, `{"orders": [{"id": "20261119-0123456789abcdef", "do": "quiet"}]}`)
				return
			}
			time.Sleep(300 * time.Millisecond)
			fmt.Fprint(w, `{}`)
		default:
			fmt.Fprint(w, `{"jobs": []}`)
		}
	}))
	defer server.Close()
	client, err := New(server.URL, Options{})
	if err != nil {
		t.Fatal(err)
	}
	worker := client.NewWorker(WorkerOptions{Queues: []string{"q"}})
	Task[struct{}, any]{Name: "a"}.Handle(worker, func(context.Context, *Job, struct{}) (any, error) { return nil, nil })
	go func() {
		for beats.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
		worker.Stop()
	}()
	if err := worker.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if answered.Load() != 1 {
		t.Errorf("%d answers", answered.Load())
	}
}
