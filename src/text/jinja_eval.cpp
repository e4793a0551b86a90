#include "text/jinja_eval.h"

#include <algorithm>

namespace ridge::text::jinja {

/// Variables of one body. Those of macros, loops and `with` end with it, unless a macro was defined inside, which may
/// be called later.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables = {};
  bool holds_macro = false;

  Value* find(std::string_view name) {
    for (auto& [key, value] : variables)
      if (key == name) return &value;
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    if (Value* const known = find(name)) *known = std::move(value);
    else variables.emplace_back(name, std::move(value));
  }
};

namespace {

enum class Flow : uint8_t { next, broken, continued };

class Evaluator {
 public:
  explicit Evaluator(Run& run) : run_(run) {}

  std::string run(const Node& body, std::vector<std::pair<std::string_view, Value>> variables) {
    const Inner scope(*this, nullptr);
    scope_->variables = std::move(variables);
    std::string text;
    out_ = &text;
    execute(body);
    return text;
  }

 private:
  /// A scope inside of `parent` until the end of the C++ block.
  struct Inner {
    Inner(Evaluator& it, Scope* parent) : in(it), outer(it.scope_), own(std::make_unique<Scope>(Scope{parent})) {
      in.run_.take(sizeof(Scope));
      in.scope_ = own.get();
    }
    ~Inner() {
      in.scope_ = outer;
      if (own->holds_macro) in.kept_.push_back(std::move(own));
    }
    Evaluator& in;
    Scope* outer;
    std::unique_ptr<Scope> own;
  };

  /// Calls `work` one level deeper; what it throws gets the place of the innermost node.
  template <class Work>
  auto at(const Node& node, Work work) {
    const Level level(run_);
    try {
      run_.step();
      level.check();
      return work();
    } catch (Trouble& trouble) {
      if (trouble.line == 0) trouble.line = node.line, trouble.column = node.column;
      throw;
    }
  }

  void write(std::string_view text) {
    run_.take(text.size());
    out_->append(text);
    if (out_->size() > run_.limits.output) trouble("the template writes more than {} bytes", run_.limits.output);
  }

  /// Returns the text that `body` writes, instead of writing it.
  std::string capture(const Node& body) {
    struct Restore {
      ~Restore() { out = outer; }
      std::string*& out;
      std::string* outer;
    } const restore{out_, out_};
    std::string text;
    out_ = &text;
    execute(body);
    return text;
  }

  // Statements.

  Flow execute(const Node& node) {
    return at(node, [&] { return statement(node); });
  }

  Flow statement(const Node& node) {
    switch (node.kind) {
      case NodeKind::body:
        for (const auto& kid : node.kids)
          if (const Flow flow = execute(*kid); flow != Flow::next) return flow;
        return Flow::next;
      case NodeKind::text: return write(*node.value.text()), Flow::next;
      case NodeKind::output: return output(*node.kids[0]), Flow::next;
      case NodeKind::if_block: return if_block(node);
      case NodeKind::for_block: return for_block(node);
      case NodeKind::set: return assign(*node.kids[0], evaluate(*node.kids[1])), Flow::next;
      case NodeKind::set_block: {
        std::string text = capture_inside(*node.kids[1]);
        return assign(*node.kids[0], filtered(*node.kids[2], std::move(text))), Flow::next;
      }
      case NodeKind::filter_block: {
        std::string text = capture_inside(*node.kids[0]);
        return write(str(run_, filtered(*node.kids[1], std::move(text)))), Flow::next;
      }
      case NodeKind::macro: return set(node.name, closure(node)), Flow::next;
      case NodeKind::call_block: return call_block(node), Flow::next;
      case NodeKind::with_block: return with_block(node);
      case NodeKind::break_loop: return Flow::broken;
      default: return Flow::continued;
    }
  }

  void output(const Node& node) {
    const Value value = evaluate(node);
    if (value.text()) write(*value.text());
    else write(str(run_, value));
  }

  Flow if_block(const Node& node) {
    size_t i = 0;
    for (; i + 1 < node.kids.size(); i += 2)
      if (truth(evaluate(*node.kids[i]))) return execute(*node.kids[i + 1]);
    return i < node.kids.size() ? execute(*node.kids[i]) : Flow::next;
  }

  Flow for_block(const Node& node) {
    const Node &target = *node.kids[0], *const filter = node.kids[2].get(), *const otherwise = node.kids[4].get();
    ListRef items = iterate(run_, evaluate(*node.kids[1]));
    if (filter) {
      std::vector<Value> kept;
      for (const Value& item : items->items) {
        const Inner scope(*this, scope_);
        assign(target, item);
        if (truth(evaluate(*filter))) kept.push_back(item);
      }
      items = *run_.list(std::move(kept)).as<ListRef>();
    }
    if (items->items.empty()) return otherwise ? execute(*otherwise) : Flow::next;
    Loop* const loop = run_.loop(items);
    for (; loop->index < items->items.size(); ++loop->index) {
      const Inner scope(*this, scope_);
      set("loop", {loop});
      assign(target, items->items[loop->index]);
      if (execute(*node.kids[3]) == Flow::broken) break;
    }
    return Flow::next;
  }

  std::string capture_inside(const Node& body) {
    const Inner scope(*this, scope_);
    return capture(body);
  }

  Value filtered(const Node& filter, std::string text) {
    const Value outer = std::exchange(piped_, run_.text(std::move(text)));
    Value made = evaluate(filter);
    piped_ = outer;
    return made;
  }

  void call_block(const Node& node) {
    const Value caller = closure(*node.kids[1]);
    write(str(run_, call(*node.kids[0], &caller)));
  }

  Flow with_block(const Node& node) {
    std::vector<Value> values;
    for (size_t i = 2; i < node.kids.size(); i += 2) values.push_back(evaluate(*node.kids[i]));
    const Inner scope(*this, scope_);
    for (size_t i = 0; i < values.size(); ++i) assign(*node.kids[1 + 2 * i], values[i]);
    return execute(*node.kids[0]);
  }

  void set(std::string_view name, Value value) {
    run_.take(sizeof(Scope::variables[0]));
    run_.step(scope_->variables.size() / 4);
    scope_->set(name, std::move(value));
  }

  void assign(const Node& target, Value value) {
    if (target.kind == NodeKind::name) {
      return set(target.name, std::move(value));
    }
    if (target.kind == NodeKind::attribute) {
      const Value object = evaluate(*target.kids[0]);
      Space* const* const space = object.as<Space*>();
      if (!space) at(target, [&] { trouble("attributes are set on namespaces only, not on {}", type_name(object)); });
      run_.take(sizeof((*space)->items[0]) + target.name.size());
      for (auto& [key, item] : (*space)->items)
        if (run_.step(), key == target.name) return void(item = std::move(value));
      return void((*space)->items.emplace_back(target.name, std::move(value)));
    }
    const ListRef items = iterate(run_, value);
    if (items->items.size() != target.kids.size())
      trouble("{} values for {} variables", items->items.size(), target.kids.size());
    for (size_t i = 0; i < target.kids.size(); ++i) assign(*target.kids[i], items->items[i]);
  }

  Value closure(const Node& macro) {
    for (Scope* scope = scope_; scope != nullptr && !scope->holds_macro; scope = scope->parent)
      scope->holds_macro = true;
    return {Callable{macro.name, &macro, scope_}};
  }

  // Expressions.

  Value evaluate(const Node& node) {
    return at(node, [&] { return expression(node); });
  }

  Value expression(const Node& node) {
    const auto kid = [&](size_t i) { return evaluate(*node.kids[i]); };
    const auto part = [&](size_t i) { return node.kids[i] ? kid(i) : Value{None{}}; };
    switch (node.kind) {
      case NodeKind::constant: return node.value;
      case NodeKind::piped: return piped_;
      case NodeKind::name: return variable(node.name);
      case NodeKind::list: return run_.list(all(node));
      case NodeKind::tuple: return run_.list(all(node), ListKind::tuple);
      case NodeKind::dict: return dict(node);
      case NodeKind::attribute: return attribute(run_, kid(0), node.name);
      case NodeKind::subscript: {
        const Value object = kid(0);
        return subscript(run_, object, kid(1));
      }
      case NodeKind::slice: {
        const Value object = kid(0), start = part(1), stop = part(2);
        return slice(run_, object, start, stop, part(3));
      }
      case NodeKind::call: return call(node, nullptr);
      case NodeKind::filter:
      case NodeKind::test: return filter(node);
      case NodeKind::negative: return negative(run_, kid(0));
      case NodeKind::positive: return arithmetic(run_, Operator::add, {int64_t(0)}, kid(0));
      case NodeKind::logical_not: return {!truth(kid(0))};
      case NodeKind::logical_and:
      case NodeKind::logical_or: {
        Value left = kid(0);
        return truth(left) == (node.kind == NodeKind::logical_or) ? left : kid(1);
      }
      case NodeKind::arithmetic: {
        const Value left = kid(0);
        return arithmetic(run_, node.op, left, kid(1));
      }
      case NodeKind::concatenation: {
        Writer to(run_);
        write_str(to, kid(0));
        write_str(to, kid(1));
        return run_.text(to.take());
      }
      case NodeKind::comparison: return {comparison(node)};
      default: break;  // choice
    }
    if (truth(kid(1))) return kid(0);
    return node.kids[2] ? kid(2) : run_.undefined("the condition is false and there is no 'else'");
  }

  Value variable(const std::string& name) {
    for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      run_.step(scope->variables.size() / 4);
      if (const Value* const found = scope->find(name)) return *found;
    }
    if (const Native native = find_function(name)) return {Callable{name, nullptr, nullptr, native}};
    return run_.undefined("'{}' is undefined", name);
  }

  std::vector<Value> all(const Node& node) {
    std::vector<Value> values;
    for (const auto& kid : node.kids) values.push_back(evaluate(*kid));
    return values;
  }

  Value dict(const Node& node) {
    Pairs items;
    for (size_t i = 0; i < node.kids.size(); i += 2) {
      Value key = evaluate(*node.kids[i]), value = evaluate(*node.kids[i + 1]);
      if (defined(key).as<ListRef>() || key.as<DictRef>()) trouble("a {} cannot be a key", type_name(key));
      const auto same = [&](const auto& item) { return equal(run_, item.first, key); };
      const auto known = std::find_if(items.begin(), items.end(), same);
      if (known != items.end()) known->second = std::move(value);
      else items.emplace_back(std::move(key), std::move(value));
    }
    return run_.dict(std::move(items));
  }

  bool comparison(const Node& node) {
    const auto holds = [&](char sign, const Value& a, const Value& b) {
      switch (sign) {
        case '=': return equal(run_, a, b);
        case '!': return !equal(run_, a, b);
        case 'i': return contains(run_, b, a);
        case 'n': return !contains(run_, b, a);
        case '<': return compare(run_, a, b) < 0;
        case 'l': return compare(run_, a, b) <= 0;
        case '>': return compare(run_, a, b) > 0;
        default: return compare(run_, a, b) >= 0;
      }
    };
    Value left = evaluate(*node.kids[0]);
    for (size_t i = 1; i < node.kids.size(); ++i) {
      Value right = evaluate(*node.kids[i]);
      if (!holds(node.name[i - 1], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  using Named = std::vector<std::pair<std::string_view, Value>>;

  /// The arguments of a call, filter or test: all children but the first.
  void arguments(const Node& node, std::vector<Value>& given, Named& named) {
    for (size_t i = 1; i < node.kids.size(); ++i) {
      const Node& kid = *node.kids[i];
      if (kid.kind != NodeKind::keyword) {
        given.push_back(evaluate(kid));
        continue;
      }
      run_.step(named.size() / 4);
      if (std::any_of(named.begin(), named.end(), [&](const auto& known) { return known.first == kid.name; }))
        trouble("argument '{}' is given twice", kid.name);
      named.emplace_back(kid.name, evaluate(*kid.kids[0]));
    }
  }

  Value filter(const Node& node) {
    if (!node.native) trouble("{} '{}' is not known", node.kind == NodeKind::filter ? "filter" : "test", node.name);
    const Value operand = evaluate(*node.kids[0]);
    std::vector<Value> given;
    Named named;
    arguments(node, given, named);
    return call_native(node.native, {run_, node.name, operand, given, named});
  }

  Value call(const Node& node, const Value* caller) {
    const Value callee = evaluate(*node.kids[0]);
    const Callable* const callable = defined(callee).as<Callable>();
    if (!callable) trouble("a value of type {} cannot be called", type_name(callee));
    std::vector<Value> given;
    Named named;
    arguments(node, given, named);
    if (callable->macro) return call_macro(*callable, given, named, caller);
    const Value nothing{None{}};
    return call_native(callable->native,
                       {run_, callable->name, callable->self ? *callable->self : nothing, given, named});
  }

  Value call_macro(const Callable& callable, const std::vector<Value>& given, const Named& named, const Value* caller) {
    const std::vector<std::unique_ptr<Node>>& kids = callable.macro->kids;  // body, parameters
    const Inner scope(*this, callable.scope);
    if (given.size() > kids.size() - 1)
      trouble("macro '{}' takes {} arguments, not {}", callable.name, kids.size() - 1, given.size());
    for (const auto& [name, value] : named) {
      run_.step(kids.size() / 4);
      const auto is_meant = [&, wanted = name](const auto& kid) { return kid->name == wanted; };
      const auto place = std::find_if(kids.begin() + 1, kids.end(), is_meant);
      if (place == kids.end()) trouble("macro '{}' has no parameter '{}'", callable.name, name);
      if (size_t(place - kids.begin()) <= given.size()) trouble("parameter '{}' is given twice", name);
    }
    if (caller) set("caller", *caller);
    for (size_t i = 1; i < kids.size(); ++i) {
      const auto is_named = [&](const auto& argument) { return argument.first == kids[i]->name; };
      const auto found = std::find_if(named.begin(), named.end(), is_named);
      run_.step(named.size() / 4);
      if (i <= given.size()) set(kids[i]->name, given[i - 1]);
      else if (found != named.end()) set(kids[i]->name, found->second);
      else if (!kids[i]->kids.empty()) set(kids[i]->name, evaluate(*kids[i]->kids[0]));
      else set(kids[i]->name, run_.undefined("parameter '{}' was not provided", kids[i]->name));
    }
    return run_.text(capture(*kids[0]));
  }

  Run& run_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  Value piped_;
  std::vector<std::unique_ptr<Scope>> kept_;
};

}  // namespace

std::string evaluate(Run& run, const Node& body, std::vector<std::pair<std::string_view, Value>> variables) {
  return Evaluator(run).run(body, std::move(variables));
}

}  // namespace ridge::text::jinja
