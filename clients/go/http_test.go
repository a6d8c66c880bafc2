package winch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

const token = "winch_0123456789abcdef"

// answers is a server that gives these answers in turn, the last one for ever, and keeps the bodies.
type answers struct {
	mutex  sync.Mutex
	list   []http.HandlerFunc
	bodies []string
	times  []time.Time
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mutex.Lock()
	a.bodies, a.times = append(a.bodies, string(body)), append(a.times, time.Now())
	answer := a.list[0]
	if len(a.list) > 1 {
		a.list = a.list[1:]
	}
	a.mutex.Unlock()
	answer(w, r)
}

func says(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for n := 0; n+1 < len(headers); n += 2 {
			w.Header().Set(headers[n], headers[n+1])
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// cutOff takes the request and closes the connection without an answer.
func cutOff(w http.ResponseWriter, _ *http.Request) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}

func served(t *testing.T, list ...http.HandlerFunc) (*answers, *Client) {
	t.Helper()
	made := &answers{list: list}
	server := httptest.NewServer(made)
	t.Cleanup(server.Close)
	client, err := New(server.URL+"/winch/", Options{Token: token, Patience: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return made, client
}

func TestALostAnswerIsAskedForAgainUnderTheSameID(t *testing.T) {
	made, client := served(t, cutOff, says(503, "busy"), says(502, ""), says(202, `{"id": "x"}`))
	id, err := client.Enqueue(context.Background(), NewJob{Task: "a"})
	if id != "x" || err != nil || len(made.bodies) != 4 {
		t.Fatal(id, err, made.bodies)
	}
	for _, body := range made.bodies {
		if body != made.bodies[0] || !strings.Contains(body, `"id"`) {
			t.Error(body)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	made, client := served(t, says(429, `{"code": "queue-full"}`, "Retry-After", "1"), says(202, `{"id": "x"}`))
	if _, err := client.Enqueue(context.Background(), NewJob{Task: "a"}); err != nil {
		t.Fatal(err)
	}
	if waited := made.times[1].Sub(made.times[0]); waited < time.Second {
		t.Error(waited)
	}
}

func TestPatienceHasAnEnd(t *testing.T) {
	made, client := served(t, says(503, `{"code": "busy", "detail": "later"}`))
	client.patience = 300 * time.Millisecond
	began := time.Now()
	_, err := client.Enqueue(context.Background(), NewJob{Task: "a"})
	if !IsCode(err, "busy") || time.Since(began) > 5*time.Second || len(made.bodies) < 2 {
		t.Error(err, made.bodies)
	}
}

func TestARefusalIsNotRepeated(t *testing.T) {
	made, client := served(t, says(422, `{"code": "invalid", "detail": "args.n must be integer"}`))
	_, err := client.Enqueue(context.Background(), NewJob{Task: "a"})
	var problem *Error
	if !errors.As(err, &problem) || problem.Status != 422 || problem.Detail != "args.n must be integer" || len(made.bodies) != 1 {
		t.Error(err, made.bodies)
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	_, client := served(t, says(503, ""))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Enqueue(ctx, NewJob{Task: "a"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	elsewhere, other := served(t, says(200, `{"id": "x"}`))
	_, client := served(t, says(307, "", "Location", other.base+"/jobs"))
	if _, err := client.Enqueue(context.Background(), NewJob{Task: "a"}); err == nil || len(elsewhere.bodies) > 0 {
		t.Error(err, elsewhere.bodies)
	}
}

func TestNothingThatIsPrintedHasASecret(t *testing.T) {
	var log bytes.Buffer
	made := &answers{list: []http.HandlerFunc{says(201, `{"beat_seconds": 0.01}`), cutOff}}
	server := httptest.NewServer(made)
	defer server.Close()
	var mutex sync.Mutex
	client, err := New(server.URL, Options{Token: token, Log: func(format string, args ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Fprintf(&log, format+"\n", args...)
	}})
	if err != nil {
		t.Fatal(err)
	}
	worker := client.NewWorker(WorkerOptions{Queues: []string{"q"}, Name: "w"})
	Task[struct{}, any]{Name: "a"}.Handle(worker, func(context.Context, *Job, struct{}) (any, error) { return nil, nil })
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := worker.Run(ctx); err != nil {
		t.Fatal(err)
	}
	var about struct{ Key string }
	if err := json.Unmarshal([]byte(made.bodies[0]), &about); err != nil || about.Key == "" {
		t.Fatal(err, made.bodies[0])
	}
	job := &Job{token: "claim-token", Facts: Facts{ID: "j", Args: json.RawMessage(`{"card": "4111"}`)}}
	mutex.Lock()
	printed := log.String()
	mutex.Unlock()
	if !strings.Contains(printed, "heartbeat") || !strings.Contains(printed, "claim") {
		t.Error("the log has no error to look at: " + printed)
	}
	for _, value := range []any{client, *client, worker, job} {
		printed += fmt.Sprintf("%v %+v %#v %s\n", value, value, value, value)
	}
	for _, secret := range []string{token, about.Key, "claim-token", "4111"} {
		if strings.Contains(printed, secret) {
			t.Errorf("%q is in %s", secret, printed)
		}
	}
}

func TestTLSTrustsTheAuthorityThatIsGiven(t *testing.T) {
	server := httptest.NewTLSServer(&answers{list: []http.HandlerFunc{says(202, `{"id": "x"}`)}})
	defer server.Close()
	server.Config.ErrorLog = nil
	stranger, _ := New(server.URL, Options{Patience: time.Millisecond})
	_, err := stranger.Enqueue(context.Background(), NewJob{Task: "a"})
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	client, _ := New(server.URL, Options{Transport: transport})
	if id, err := client.Enqueue(context.Background(), NewJob{Task: "a"}); id != "x" || err != nil {
		t.Error(id, err)
	}
}

// TestAProxyIsUsed runs a proxy that opens tunnels, as a company's does.
func TestAProxyIsUsed(t *testing.T) {
	server := httptest.NewTLSServer(&answers{list: []http.HandlerFunc{says(202, `{"id": "x"}`)}})
	defer server.Close()
	var tunnels []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels = append(tunnels, r.Method+" "+r.Host+" "+r.Header.Get("Authorization"))
		there, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(502)
			return
		}
		here, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		fmt.Fprint(here, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { io.Copy(there, here); there.Close() }()
		io.Copy(here, there)
		here.Close()
	}))
	defer proxy.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	where, _ := url.Parse(proxy.URL)
	transport.Proxy = http.ProxyURL(where)
	client, _ := New(server.URL, Options{Transport: transport, Token: token})
	if id, err := client.Enqueue(context.Background(), NewJob{Task: "a"}); id != "x" || err != nil {
		t.Fatal(id, err)
	}
	if len(tunnels) != 1 || tunnels[0] != "CONNECT "+strings.TrimPrefix(server.URL, "https://")+" " {
		t.Error(tunnels)
	}
	transport.CloseIdleConnections()
}

func TestTheDefaultTransportAsksTheEnvironmentForAProxy(t *testing.T) {
	client, _ := New("https://jobs.example.com", Options{})
	if client.http.Transport.(*http.Transport).Proxy == nil {
		t.Error("it does not")
	}
}
