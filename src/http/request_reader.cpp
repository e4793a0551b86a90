#include "http/request_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>

#include "http/url.h"

namespace ridge::http {

namespace beast = boost::beast::http;

/// A string that grows with what arrives: the library's own reserves as many bytes as a client claims.
struct GrowingBody {
  using value_type = std::string;
  struct reader {
    value_type& body;
    template <bool is_request, class Fields>
    reader(beast::header<is_request, Fields>&, value_type& b) : body(b) {}
    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      const size_t before = body.size();
      for (auto it = boost::asio::buffer_sequence_begin(buffers); it != boost::asio::buffer_sequence_end(buffers); ++it)
        body.append(static_cast<const char*>(it->data()), it->size());
      return body.size() - before;
    }
    void finish(boost::system::error_code& error) { error = {}; }
  };
};

namespace {

/// Lines end in CR LF and do not go on in the next one; no other control characters than tabs.
bool plain_lines(std::string_view head) {
  for (size_t i = 0; i < head.size(); ++i) {
    const auto c = uint8_t(head[i]);
    if (c == '\r') {
      if (i + 1 == head.size() || head[i + 1] != '\n') return false;
      if (i + 2 < head.size() && (head[i + 2] == ' ' || head[i + 2] == '\t')) return false;
      ++i;
    } else if ((c < 0x20 && c != '\t') || c == 0x7F) {
      return false;
    }
  }
  return true;
}

}  // namespace

struct RequestReader::Parser : beast::request_parser<GrowingBody> {};

RequestReader::RequestReader(const Limits& limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

size_t RequestReader::body_bytes() const { return parser_ ? parser_->get().body().size() : 0; }
bool RequestReader::has_body() const { return !parser_->is_done(); }
bool RequestReader::keep_alive() const { return parser_->keep_alive(); }
bool RequestReader::expects_continue() const {
  return !request_.http10 && has_body() && bytes_.empty() && same_name(request_.headers.get("Expect"), "100-continue");
}

RequestReader::Step RequestReader::refuse(int status, std::string why) {
  status_ = status;
  why_ = std::move(why);
  bytes_.clear();
  parser_.reset();
  return Step::refused;
}

RequestReader::Step RequestReader::step() {
  if (status_ != 0) return Step::refused;
  if (!parser_) return bytes_.empty() ? Step::more : read_head();
  return read_body();
}

RequestReader::Step RequestReader::read_head() {
  const std::string_view seen = std::string_view(bytes_).substr(0, limits_.header_bytes);
  if (seen[0] < 'A' || seen[0] > 'Z') return refuse(400, "this is not HTTP");
  if (!line_checked_) {  // before the head ends: older and newer protocols may never send that
    const std::string_view line = seen.substr(0, seen.find('\n'));
    if (line.size() < seen.size()) {
      if (!line.ends_with(" HTTP/1.1\r") && !line.ends_with(" HTTP/1.0\r"))
        return line.find(" HTTP/") == line.npos || line.find(" HTTP/1.1") != line.npos ||
                       line.find(" HTTP/1.0") != line.npos
                   ? refuse(400, "this is not HTTP/1.1")
                   : refuse(505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
      line_checked_ = true;
    }
  }
  const size_t end = seen.find("\r\n\r\n", scanned_);
  if (end == seen.npos) {
    scanned_ = seen.size() < 3 ? 0 : seen.size() - 3;
    return seen.size() < limits_.header_bytes
               ? Step::more
               : refuse(431, fmt::format("the head is longer than {} bytes", limits_.header_bytes));
  }
  const std::string_view head = seen.substr(0, end + 4);
  if (!plain_lines(head)) return refuse(400, "the head has a folded line or a control character");
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(uint32_t(limits_.header_bytes));
  parser_->body_limit(limits_.body_bytes);
  boost::system::error_code error;
  parser_->put(boost::asio::buffer(head.data(), head.size()), error);
  if (error == beast::error::body_limit)
    return refuse(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes));
  if (error || !parser_->is_header_done())
    return refuse(400, "the head is malformed: " + (error ? error.message() : "it does not end"));
  parser_->eager(true);
  bytes_.erase(0, head.size());
  line_checked_ = false;
  scanned_ = 0;
  return check_head();
}

RequestReader::Step RequestReader::check_head() {
  const auto& message = parser_->get();
  request_ = {};
  request_.method = std::string(message.method_string());
  request_.http10 = message.version() == 10;
  for (const auto& field : message)
    request_.headers.add({field.name_string().data(), field.name_string().size()},
                         {field.value().data(), field.value().size()});
  const Headers& headers = request_.headers;

  // Two parties that read one of these differently see different requests in the same bytes.
  const bool has_length = headers.count("Content-Length") > 0, has_coding = headers.count("Transfer-Encoding") > 0;
  if (has_length && has_coding) return refuse(400, "Content-Length and Transfer-Encoding together");
  if (headers.count("Content-Length") > 1 ||
      headers.get("Content-Length").find_first_not_of("0123456789") != std::string_view::npos)
    return refuse(400, "Content-Length must be one number");
  if (has_coding && (headers.count("Transfer-Encoding") > 1 || !same_name(headers.get("Transfer-Encoding"), "chunked")))
    return refuse(501, "the only transfer coding known here is chunked");
  if (has_coding && request_.http10) return refuse(400, "HTTP/1.0 has no transfer codings");
  const size_t n_hosts = headers.count("Host");
  if (n_hosts != 1 && !(n_hosts == 0 && request_.http10)) return refuse(400, "there must be one Host field");
  if (n_hosts == 1 && host_name(headers.get("Host")).empty()) return refuse(400, "the Host field is malformed");
  if (headers.find("Expect") && !request_.http10 && !same_name(headers.get("Expect"), "100-continue"))
    return refuse(417, "the only expectation known here is 100-continue");

  auto target = parse_target({message.target().data(), message.target().size()});
  if (!target) return refuse(400, target.error().message);
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
  return Step::head;
}

RequestReader::Step RequestReader::read_body() {
  size_t used = 0;
  boost::system::error_code error;
  while (!parser_->is_done() && used < bytes_.size()) {
    // Pieces of bounded size: lines between chunks then have the head's limit.
    const std::string_view piece = std::string_view(bytes_).substr(used, limits_.header_bytes);
    // The last chunk has 5 bytes or more, and Beast 1.74 asserts that when it looks at a part of one for the second
    // time. Where the 0 is data instead, at least 7 bytes follow.
    if (parser_->chunked() && piece.size() < 5 && piece.starts_with('0')) break;
    const size_t taken = parser_->put(boost::asio::buffer(piece.data(), piece.size()), error);
    used += taken;
    if (error == beast::error::need_more) {
      if (taken == 0 && piece.size() == limits_.header_bytes) return refuse(400, "a line between chunks is too long");
      if (taken == 0) break;
      error = {};
    }
    if (error == beast::error::body_limit)
      return refuse(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes));
    if (error) return refuse(400, "the body is malformed: " + error.message());
  }
  bytes_.erase(0, used);
  return parser_->is_done() ? Step::whole : Step::more;
}

Request RequestReader::take() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  return std::move(request_);
}

}  // namespace ridge::http
